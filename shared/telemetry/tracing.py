"""Spans of a request, when somebody collects them; nothing, and at no cost, when nobody does."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol

from shared.telemetry import about

Value = str | int | float | bool
Attributes = Mapping[str, Value]
SpanKind = Literal["server", "internal"]
REQUEST_ID = "request_id"


class Span(Protocol):
    """One piece of work. After `end` nothing of it changes.

    Attributes are `moonpool.<name>`; a name with a dot is one of OpenTelemetry's own.
    """

    @property
    def traceparent(self) -> str:
        """Names it as the parent of others (W3C)."""

    def set(self, attributes: Attributes) -> None: ...

    def end(self, error: str = "", at_s: float | None = None) -> None:
        """`error`: why it failed. `at_s`: on the monotonic clock; now when not given."""


class NoSpan:
    """Nobody collects spans; whoever was the parent stays it."""

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def set(self, attributes: Attributes) -> None:
        del attributes

    def end(self, error: str = "", at_s: float | None = None) -> None:
        del error, at_s


class SpanMaker(Protocol):
    def start(
        self,
        name: str,
        parent: str,
        kind: SpanKind,
        attributes: Attributes,
        at_s: float | None = None,
    ) -> Span:
        """`parent`: a traceparent, or empty for a new trace."""


NO_SPAN = NoSpan()
_maker: SpanMaker | None = None


def use(maker: SpanMaker | None) -> None:
    """From now on spans of this process are made by it."""
    global _maker
    _maker = maker


def is_on() -> bool:
    return _maker is not None


def begin(name: str, parent: str) -> Span | None:
    """A span that its owner ends, such as a whole request; None when nobody collects them.

    `parent` is the traceparent that came with it, or empty.
    """
    return None if _maker is None else _maker.start(name, parent, "server", {})


@contextmanager
def span(
    name: str, kind: SpanKind = "internal", attributes: Attributes | None = None
) -> Iterator[Span]:
    """A piece of work of the request this task works for; what it starts is below it.

    In tasks that work for no traced request there is none.
    """
    outer = about.current()
    if _maker is None or not outer.traceparent:
        yield NO_SPAN
        return
    found = {REQUEST_ID: outer.request_id, **(attributes or {})}
    made = _maker.start(name, outer.traceparent, kind, found)
    about.work_for(outer.request_id, made.traceparent)
    error = ""
    try:
        yield made
    except asyncio.CancelledError:
        error = "cancelled"
        raise
    except BaseException as raised:
        error = str(raised) or type(raised).__name__
        raise
    finally:
        about.work_for(outer.request_id, outer.traceparent)
        made.end(error)


def past(name: str, from_s: float, to_s: float, attributes: Attributes) -> None:
    """A piece of work that is over, by the monotonic clock."""
    outer = about.current()
    if _maker is None or not outer.traceparent:
        return
    found = {REQUEST_ID: outer.request_id, **attributes}
    made = _maker.start(name, outer.traceparent, "internal", found, from_s)
    made.end(at_s=max(from_s, to_s))
