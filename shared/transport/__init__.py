"""Moves KV bytes between pools: local, and the interface all transports share."""
