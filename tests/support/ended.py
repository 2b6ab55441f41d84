"""Requests that ended and reports, as the overview's tests want them."""

from typing import Any

from shared.messages.bill import FinishedBill, Reuse, Times
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef
from shared.messages.conductor import Candidate, Placement
from shared.messages.recent import Decision, EndedRequest
from shared.messages.reports import GatewayReport, InstanceReport, NodeReport

MODEL = "dummy:tiny"
PREFILL = InstanceRef(id="prefill-1", incarnation="pi", node="node-1")
DECODE = InstanceRef(id="decode-1", incarnation="di", node="node-2")


def bill(*, ttft_s: float = 0.2, tbt_s: float = 0.02, **reuse: Any) -> FinishedBill:
    return FinishedBill(
        request_id="r",
        model=MODEL,
        prefill=PREFILL,
        decode=DECODE,
        predicted=Times(queue_s=0.01, compute_s=0.1, ttft_s=0.11),
        real=Times(queue_s=0.02, load_s=0.05, compute_s=0.1, ttft_s=ttft_s, tbt_s=tbt_s),
        reuse=Reuse(**{"prompt_tokens": 100, **reuse}),
        output_tokens=5,
        decode_s=0.4,
    )


def finished(number: int = 1, **changes: Any) -> EndedRequest:
    """`changes` of the bill (ttft_s, tbt_s, reuse) or of the request."""
    of_request = {
        name: changes.pop(name)
        for name in list(changes)
        if name in EndedRequest.model_fields and name != "bill"
    }
    fields: dict[str, Any] = {
        "number": number,
        "ended_ms": 0,
        "request_id": f"r{number}-abc",
        "client_id": f"r{number}",
        "model": MODEL,
        "ending": "finished",
        "prompt_tokens": 100,
        "output_tokens": 5,
        "bill": bill(**changes),
        "decisions": [decision()],
    }
    return EndedRequest(**(fields | of_request))


def refused(number: int = 1, **changes: Any) -> EndedRequest:
    error = ErrorInfo(code=ErrorCode.OVERLOADED, message="no room")
    fields: dict[str, Any] = {
        "number": number,
        "ended_ms": 0,
        "request_id": f"r{number}-abc",
        "client_id": f"r{number}",
        "model": MODEL,
        "ending": "refused",
        "error": error,
        "decisions": [Decision(refusal=error)],
    }
    return EndedRequest(**(fields | changes))


def decision() -> Decision:
    placement = Placement(
        prefill=PREFILL,
        decode=DECODE,
        local_blocks=1,
        source=None,
        predicted=Times(compute_s=0.1),
        policy="moonpool",
    )
    loser = Candidate(
        prefill=InstanceRef(id="prefill-2", incarnation="p2", node="node-2"),
        local_blocks=0,
        remote_blocks=1,
        predicted=Times(compute_s=0.4),
        reason="not best",
    )
    return Decision(placement=placement, losers=[loser], counts={"not best": 1})


def node_report(node: str = "node-1", **changes: Any) -> NodeReport:
    fields: dict[str, Any] = {
        "id": node,
        "incarnation": f"{node}-i",
        "state": "ready",
        "block_bytes": 1_000,
        "slots_total": 100,
        "slots_free": 40,
        "slots_sealed": 60,
        "slots_low": 5,
        "slots_high": 10,
    }
    return NodeReport(**(fields | changes))


def instance_report(service: str = "prefill", name: str = "prefill-1", **more: Any) -> Any:
    fields: dict[str, Any] = {
        "service": service,
        "id": name,
        "incarnation": f"{name}-i",
        "node": "node-1",
        "node_incarnation": "node-1-i",
        "state": "ready",
        "model": MODEL,
        "root": b"r" * 16,
        "kv_format": {},
        "block_tokens": 16,
        "grid_tokens": 16,
        "block_bytes": 1_000,
        "context_tokens": 512,
    }
    return InstanceReport(**(fields | more))


def gateway_report(name: str = "gateway-1", **changes: Any) -> GatewayReport:
    return GatewayReport(**{"id": name, "incarnation": "gi", "state": "ready", **changes})
