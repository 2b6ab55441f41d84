"""The conductor service."""
