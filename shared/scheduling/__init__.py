"""PURE: cost model, policies, admission, the conductor's core. No I/O, no clocks."""
