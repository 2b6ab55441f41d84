"""Waiting for slots: all or none, once more room is made, and not for ever."""

from typing import Any

import pytest

from shared.messages.common import ErrorCode, NodeRef
from shared.messages.pool import AllocateReply
from shared.runtime.errors import ServiceError
from shared.worker import slot_wait
from shared.worker.slot_wait import allocate_when_free


class FullPool:
    """Has slots after `refusals` questions."""

    node = NodeRef(id="a", incarnation="1")

    def __init__(self, refusals: int, code: ErrorCode = ErrorCode.OVERLOADED) -> None:
        self.refusals = refusals
        self.code = code

    async def allocate(self, handle: str, num_slots: int) -> AllocateReply:
        if self.refusals:
            self.refusals -= 1
            raise ServiceError(self.code, "none now")
        return AllocateReply(slots=list(range(num_slots)), generations=[1] * num_slots)


async def test_it_waits_until_all_slots_are_there() -> None:
    pool: Any = FullPool(refusals=3)
    assert (await allocate_when_free(pool, "r/0", 2)).slots == [0, 1]


async def test_room_is_asked_for_once_when_waiting_does_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_wait, "MAKE_ROOM_AFTER_S", 0.0)
    asked: list[int] = []

    async def make_room() -> None:
        asked.append(1)

    pool: Any = FullPool(refusals=4)
    await allocate_when_free(pool, "r/0", 1, make_room=make_room)
    assert asked == [1]


async def test_it_gives_up_with_an_error_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_wait, "GIVE_UP_AFTER_S", 0.02)
    pool: Any = FullPool(refusals=1_000_000)
    with pytest.raises(ServiceError) as given_up:
        await allocate_when_free(pool, "r/0", 1)
    assert (given_up.value.code, given_up.value.is_retryable) == (ErrorCode.OVERLOADED, True)


async def test_another_error_is_not_waited_out() -> None:
    pool: Any = FullPool(refusals=1, code=ErrorCode.POOL_LOST)
    with pytest.raises(ServiceError) as lost:
        await allocate_when_free(pool, "r/0", 1)
    assert lost.value.code == ErrorCode.POOL_LOST
    assert pool.refusals == 0
