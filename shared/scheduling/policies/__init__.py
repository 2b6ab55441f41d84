"""PURE: placement policies, one file each."""
