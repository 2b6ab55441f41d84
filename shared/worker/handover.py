"""Gives a computed prompt to its decode instance: asked again in bounds, then given up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.messages import subjects
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef
from shared.messages.decode import Handoff, HandoffReply, Judge, JudgeReply
from shared.messages.envelope import Message
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import NoResponder, ServiceError
from shared.telemetry import about
from shared.worker.attempts import Attempt

TIMEOUT_S = 2.0
"""Longer than decode lets us wait; question and answer may get lost, so they are said again."""
GIVE_UP_AFTER_S = 30.0
UNHEARD_S = 1.5
"""Nobody listens there for so long: after a restart of NATS decode may come back after us."""
PAUSE_S = 0.2
R = TypeVar("R", bound=Message)


async def hand_over(
    bus: Bus,
    attempt: Attempt,
    decode: InstanceRef,
    handoff: Handoff,
    is_wanted: Callable[[], Awaitable[bool]],
) -> HandoffReply:
    """Returns once decode holds all KV. Decode answers a repeated question with the same answer.

    While decode cannot take over, it may wait for slots whose holder waits for ours, over any
    number of nodes. So who finds its slots wanted by a request that goes before it gives them up.
    """

    async def on_late(error: ServiceError) -> None:
        if await is_wanted():
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"decode {decode.id} has no room yet, and a request that goes before this one "
                "waits for its blocks; retry elsewhere",
                is_retryable=True,
            ) from error

    subject = subjects.instance("decode", decode.id, "handoff")
    return await _answer_of(bus, attempt, decode, (subject, handoff, HandoffReply), on_late)


async def asks_to_join(
    bus: Bus, attempt: Attempt, decode: InstanceRef, allowed_tbt_s: float
) -> ErrorInfo | None:
    """Why decode does not take the computed prompt; None: it does."""

    async def on_late(_: ServiceError) -> None:
        """It is asked again."""

    question = Judge(
        ref=attempt.ref,
        allowed_tbt_ms=allowed_tbt_s * 1e3,
        traceparent=about.current().traceparent,
    )
    subject = subjects.instance("decode", decode.id, "judge")
    reply = await _answer_of(bus, attempt, decode, (subject, question, JudgeReply), on_late)
    return reply.refusal


async def _answer_of(
    bus: Bus,
    attempt: Attempt,
    decode: InstanceRef,
    asked: tuple[str, Message, type[R]],
    on_late: Callable[[ServiceError], Awaitable[None]],
) -> R:
    """`asked`: subject, question, type of the answer. PEER_LOST when there is none in time."""
    subject, question, reply_type = asked
    start_s = heard_s = monotonic_s()
    last = "the attempt has no time left"
    while monotonic_s() - start_s < min(GIVE_UP_AFTER_S, attempt.deadline_s - start_s):
        timeout_s = max(min(attempt.remaining_s, TIMEOUT_S), 0.05)
        try:
            return await bus.request(subject, question, reply_type, timeout_s=timeout_s)
        except NoResponder as error:
            last = error.message
            if monotonic_s() - heard_s > UNHEARD_S:
                break
            await asyncio.sleep(PAUSE_S)
        except ServiceError as error:
            if error.code != ErrorCode.DEADLINE or not error.is_retryable:
                raise
            last, heard_s = error.message, monotonic_s()
            await on_late(error)
    raise ServiceError(
        ErrorCode.PEER_LOST, f"decode {decode.id} did not take over: {last}", is_retryable=True
    )
