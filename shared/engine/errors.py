"""Errors of the engine."""


class EngineError(RuntimeError):
    """The engine was asked for what it cannot do; the sentence says what."""


class Cancelled(Exception):  # noqa: N818 - an outcome, not a fault
    """A prefill stopped between two layers because its caller no longer wants it."""
