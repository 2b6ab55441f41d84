"""The operations of a worker by role: subject, schemas, handler."""

from typing import Any

from shared.messages import subjects
from shared.messages.common import Ok
from shared.messages.decode import DecodeRun, Handoff, HandoffReply, Judge, JudgeReply
from shared.messages.prefill import Cancel, PrefillRun, Reserve, ReserveReply
from shared.runtime.micro import Endpoint
from shared.worker.decode_loop import DecodeLoop
from shared.worker.prefill_loop import PrefillLoop
from shared.worker.worker_loop import WorkerLoop


def endpoints_of(loop: PrefillLoop | DecodeLoop, instance_id: str) -> list[Endpoint[Any, Any]]:
    """Also what both roles have."""
    common = _common(loop, instance_id)
    if isinstance(loop, PrefillLoop):
        return [*common, _prefill_run(loop, instance_id)]
    return [*common, *_decode(loop, instance_id)]


def _common(loop: WorkerLoop, instance_id: str) -> list[Endpoint[Any, Any]]:
    return [
        Endpoint(
            name="reserve",
            subject=subjects.instance(loop.role, instance_id, "reserve"),
            request_type=Reserve,
            reply_type=ReserveReply,
            handler=loop.reserve,
            description="Promise room for an attempt, for a short time",
        ),
        Endpoint(
            name="cancel",
            subject=subjects.instance(loop.role, instance_id, "cancel"),
            request_type=Cancel,
            reply_type=Ok,
            handler=loop.cancel,
            description="End an attempt or a reservation and free all it holds",
        ),
    ]


def _prefill_run(loop: PrefillLoop, instance_id: str) -> Endpoint[Any, Any]:
    return Endpoint(
        name="run",
        subject=subjects.instance("prefill", instance_id, "run"),
        request_type=PrefillRun,
        reply_type=Ok,
        handler=loop.run,
        description="Compute a reserved prompt and hand it over to decode",
    )


def _decode(loop: DecodeLoop, instance_id: str) -> list[Endpoint[Any, Any]]:
    return [
        Endpoint(
            name="run",
            subject=subjects.instance("decode", instance_id, "run"),
            request_type=DecodeRun,
            reply_type=Ok,
            handler=loop.run,
            description="Expect a reserved request's KV, then generate its answer",
        ),
        Endpoint(
            name="judge",
            subject=subjects.instance("decode", instance_id, "judge"),
            request_type=Judge,
            reply_type=JudgeReply,
            handler=loop.judge,
            description="Whether a computed prompt may join; asked under baseline admission",
        ),
        Endpoint(
            name="handoff",
            subject=subjects.instance("decode", instance_id, "handoff"),
            request_type=Handoff,
            reply_type=HandoffReply,
            handler=loop.handoff,
            description="Take over a computed prompt; answered when all its KV is here",
        ),
    ]
