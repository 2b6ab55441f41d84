"""Asking the cache-indexes and the nodes what they hold, and comparing the answers."""
