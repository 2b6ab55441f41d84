"""The wire: every subject and every message, versioned, in one place."""
