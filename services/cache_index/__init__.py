"""The cache_index service."""
