"""Errors of the engine."""


class EngineError(RuntimeError):
    """The engine was asked for what it cannot do; the sentence says what."""


class Cancelled(Exception):
    """A prefill stopped between two layers because its caller no longer wants it."""
