"""Which request the running task works for: on log lines, on calls to others, above new spans.

Set once where a task begins; tasks that it starts inherit it.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """Both are empty in tasks that work for no request."""

    request_id: str = ""
    traceparent: str = ""

    @property
    def extra(self) -> dict[str, str]:
        """For `extra=` of a log line that is about another request than the task's own."""
        return {"request_id": self.request_id, "trace_id": self.trace_id}

    @property
    def trace_id(self) -> str:
        """32 hex digits of the W3C trace, or nothing."""
        parts = self.traceparent.split("-")
        return parts[1] if len(parts) > 2 else ""


NOTHING = About()
_current: ContextVar[About] = ContextVar("about", default=NOTHING)


def current() -> About:
    return _current.get()


def work_for(request_id: str, traceparent: str) -> None:
    """From now on this task, and those it starts, work for this request."""
    _current.set(About(request_id, traceparent))
