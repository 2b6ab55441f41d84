"""PURE: block keys, slots, leases, eviction, residency. No I/O, no clocks."""
