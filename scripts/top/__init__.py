"""A cluster in the terminal."""
