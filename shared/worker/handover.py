"""Gives a computed prompt to its decode instance: asked again in bounds, then given up."""

import asyncio

from shared.messages import subjects
from shared.messages.common import ErrorCode, InstanceRef
from shared.messages.decode import Handoff, HandoffReply
from shared.runtime.bus import Bus
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.worker.attempts import Attempt

TRIES = 3
TIMEOUT_S = 10.0
PAUSE_S = 0.2


async def hand_over(
    bus: Bus, attempt: Attempt, decode: InstanceRef, handoff: Handoff
) -> HandoffReply:
    """Returns once decode holds all KV. Decode answers a repeated question with the same answer."""
    subject = subjects.instance("decode", decode.id, "handoff")
    last: ServiceError | None = None
    for _ in range(TRIES):
        timeout_s = max(min(attempt.remaining_s, TIMEOUT_S), 0.05)
        try:
            return await bus.request(subject, handoff, HandoffReply, timeout_s=timeout_s)
        except (NoResponder, BusTimeout) as error:
            last = error
            await asyncio.sleep(PAUSE_S)
    raise ServiceError(
        ErrorCode.PEER_LOST, f"decode {decode.id} did not take over: {last}", is_retryable=True
    )
