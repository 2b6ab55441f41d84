"""Events of one request's life, for people: sent as JSON when the request asks for it."""

from typing import Any

from shared.messages.envelope import Message


class TraceEvent(Message):
    request_id: str
    event: str
    since_start_s: float
    """Since the gateway had the whole request."""
    traceparent: str = ""
    details: dict[str, Any] = {}
