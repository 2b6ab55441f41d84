"""PURE: eviction policies, one file each."""
