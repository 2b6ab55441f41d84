"""Waits until a pool has all the slots that a request needs; who cannot get all takes none."""

import asyncio
from collections.abc import Awaitable, Callable

from shared.messages.common import ErrorCode
from shared.messages.pool import AllocateReply
from shared.runtime.errors import ServiceError
from shared.worker.pool_client import PoolClient

MAKE_ROOM_AFTER_S = 0.3
GIVE_UP_AFTER_S = 10.0


async def allocate_when_free(
    pool: PoolClient,
    handle: str,
    num_slots: int,
    *,
    make_room: Callable[[], Awaitable[None]] | None = None,
) -> AllocateReply:
    """The pool keeps our place in its line and answers when the slots are there.

    The caller asks for one request at a time, so that slots go out in order of age. `make_room` is
    asked again and again when waiting alone does not help: others come and hold more meanwhile.
    """
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_allocate(pool, handle, num_slots))
        failure = None
        while make_room is not None and failure is None:
            done, _ = await asyncio.wait({waiting}, timeout=MAKE_ROOM_AFTER_S)
            if done:
                break
            failure = await _error_of(make_room)
        if failure is not None:
            waiting.cancel()
            await asyncio.wait({waiting})
        reply = failure or await waiting
    if isinstance(reply, AllocateReply):
        return reply
    if reply.code != ErrorCode.OVERLOADED:
        raise reply
    raise ServiceError(
        ErrorCode.OVERLOADED,
        f"the pool of {pool.node.id} had no {num_slots} free blocks for {GIVE_UP_AFTER_S:g} s",
        is_retryable=True,
    ) from reply


async def _error_of(call: Callable[[], Awaitable[None]]) -> ServiceError | None:
    try:
        await call()
    except ServiceError as error:
        return error
    return None


async def _allocate(pool: PoolClient, handle: str, num_slots: int) -> AllocateReply | ServiceError:
    """The error as a value: raised in a group it would come out wrapped."""
    try:
        return await pool.allocate(handle, num_slots, wait_s=GIVE_UP_AFTER_S)
    except ServiceError as error:
        return error
