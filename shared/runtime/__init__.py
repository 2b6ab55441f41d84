"""The I/O shell of a service: bus, clock, life cycle, settings, errors."""
