"""What comes beside the body of a request: its headers, its ids, who sent it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from starlette.requests import Request

from services.gateway.body_parts import Priority
from services.gateway.callers import Caller
from services.gateway.errors import bad_request
from services.gateway.openai_schema import GenerationBody
from services.gateway.request_ids import RequestIds
from services.gateway.trace_context import continued
from shared.messages.common import CacheMode

MAX_TARGET_MS = 3_600_000.0


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """A header says it for the body that says nothing; of `cache` the header has the last word."""

    ids: RequestIds
    caller: Caller
    cache: CacheMode
    priority: Priority
    ttft_slo_ms: float | None
    tbt_slo_ms: float | None
    traceparent: str
    is_traced: bool


def options_of(request: Request, body: GenerationBody, caller: Caller) -> RequestOptions:
    """Raises ApiError for a header that says nothing of sense."""
    said = dict(reversed(request.headers.items()))  # of one that comes twice the first counts
    ttft_ms = _target(said, "x-moonpool-ttft-slo-ms")
    tbt_ms = _target(said, "x-moonpool-tbt-slo-ms")
    return RequestOptions(
        ids=request.state.ids,
        caller=caller,
        cache=_cache(said) or body.cache,
        priority=caller.priority(body.priority or _priority(said)),
        ttft_slo_ms=ttft_ms if body.ttft_slo_ms is None else body.ttft_slo_ms,
        tbt_slo_ms=tbt_ms if body.tbt_slo_ms is None else body.tbt_slo_ms,
        traceparent=continued(said.get("traceparent")),
        is_traced=_flag(said, "x-moonpool-trace"),
    )


def flag(request: Request, header: str) -> bool:
    return _flag(request.headers, header)


def _flag(said: Mapping[str, str], header: str) -> bool:
    value = said.get(header, "0")
    if value not in ("0", "1"):
        raise bad_request(header, f"Invalid '{header}': must be 0 or 1")
    return value == "1"


def _cache(said: Mapping[str, str]) -> CacheMode | None:
    value = said.get("x-moonpool-cache")
    match value:
        case None | "on" | "off":
            return value
    raise bad_request("x-moonpool-cache", "Invalid 'x-moonpool-cache': must be on or off")


def _priority(said: Mapping[str, str]) -> Priority | None:
    value = said.get("x-moonpool-priority")
    match value:
        case None | "low" | "normal" | "high":
            return value
    allowed = ", ".join(get_args(Priority))
    raise bad_request(
        "x-moonpool-priority", f"Invalid 'x-moonpool-priority': must be one of {allowed}"
    )


def _target(said: Mapping[str, str], header: str) -> float | None:
    text = said.get(header)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= MAX_TARGET_MS:
        raise bad_request(header, f"Invalid '{header}': must be milliseconds above 0")
    return value
