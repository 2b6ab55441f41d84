"""Waiting for slots: all or none, once more room is made, and not for ever."""

import asyncio
from typing import Any

import pytest

from shared.messages.common import ErrorCode, NodeRef
from shared.messages.pool import AllocateReply
from shared.runtime.errors import ServiceError
from shared.worker import slot_wait
from shared.worker.slot_wait import allocate_when_free
from tests.support.deadline import until


class FullPool:
    """Has slots once `room` is set, as long as somebody waits for them."""

    node = NodeRef(id="a", incarnation="1")

    def __init__(self, code: ErrorCode = ErrorCode.OVERLOADED) -> None:
        self.room = asyncio.Event()
        self.code = code
        self.num_calls = 0

    async def allocate(self, handle: str, num_slots: int, wait_s: float) -> AllocateReply:
        self.num_calls += 1
        try:
            async with asyncio.timeout(wait_s):
                await self.room.wait()
        except TimeoutError:
            raise ServiceError(self.code, "none in time") from None
        return AllocateReply(slots=list(range(num_slots)), generations=[1] * num_slots)


async def test_it_is_told_when_all_slots_are_there_and_asks_once() -> None:
    pool: Any = FullPool()
    asyncio.get_running_loop().call_later(0.05, pool.room.set)
    assert (await allocate_when_free(pool, "r/0", 2)).slots == [0, 1]
    assert pool.num_calls == 1


async def test_room_is_asked_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made once may be taken by those who were bringing their prefix just then."""
    monkeypatch.setattr(slot_wait, "MAKE_ROOM_AFTER_S", 0.0)
    pool: Any = FullPool()
    asked: list[int] = []

    async def make_room() -> None:
        asked.append(1)
        if len(asked) == 3:
            pool.room.set()

    await allocate_when_free(pool, "r/0", 1, make_room=make_room)
    assert len(asked) >= 3
    assert pool.num_calls == 1


@pytest.mark.parametrize("code", [ErrorCode.OVERLOADED, ErrorCode.POOL_LOST])
async def test_it_gives_up_with_the_error_of_the_pool(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    monkeypatch.setattr(slot_wait, "GIVE_UP_AFTER_S", 0.02)
    pool: Any = FullPool(code)
    with pytest.raises(ServiceError) as given_up:
        await allocate_when_free(pool, "r/0", 1)
    assert given_up.value.code == code
    assert given_up.value.is_retryable == (code == ErrorCode.OVERLOADED)


async def test_who_is_cancelled_waits_no_longer() -> None:
    pool: Any = FullPool()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(allocate_when_free(pool, "r/0", 1))
        await until(lambda: pool.num_calls, what="it waits")
        waiting.cancel()
    assert waiting.cancelled()


async def test_room_that_cannot_be_made_is_the_error_that_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_wait, "MAKE_ROOM_AFTER_S", 0.0)
    pool: Any = FullPool()

    async def make_room() -> None:
        raise ServiceError(ErrorCode.POOL_LOST, "the pool is gone", is_retryable=True)

    with pytest.raises(ServiceError, match="the pool is gone"):
        await allocate_when_free(pool, "r/0", 1, make_room=make_room)
