"""Waits until a pool has all the slots that a request needs; who cannot get all takes none."""

import asyncio
from collections.abc import Awaitable, Callable

from shared.messages.common import ErrorCode
from shared.messages.pool import AllocateReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.worker.pool_client import PoolClient

FIRST_WAIT_S = 0.01
LONGEST_WAIT_S = 0.2
MAKE_ROOM_AFTER_S = 0.3
GIVE_UP_AFTER_S = 10.0


async def allocate_when_free(
    pool: PoolClient,
    handle: str,
    num_slots: int,
    *,
    make_room: Callable[[], Awaitable[None]] | None = None,
) -> AllocateReply:
    """The caller keeps its place in line meanwhile, so that slots go out in order of age.

    Slots come back when other holders release them, which nobody tells us: hence the short waits.
    `make_room` is asked once, when waiting alone does not help.
    """
    start_s = monotonic_s()
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await pool.allocate(handle, num_slots)
        except ServiceError as error:
            waited_s = monotonic_s() - start_s
            if error.code != ErrorCode.OVERLOADED:
                raise
            if waited_s > GIVE_UP_AFTER_S:
                raise ServiceError(
                    ErrorCode.OVERLOADED,
                    f"the pool of {pool.node.id} had no {num_slots} free blocks for "
                    f"{GIVE_UP_AFTER_S:g} s",
                    is_retryable=True,
                ) from error
        if make_room is not None and waited_s > MAKE_ROOM_AFTER_S:
            await make_room()
            make_room = None
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
