"""The line for slots: in order, all or none, told when there are some, and never stuck."""

import asyncio
from collections.abc import Sequence

import pytest

from services.transfer import slot_line
from services.transfer.attachments import default_cap
from services.transfer.slot_line import SlotLine, rank
from shared.kv.block_pool import BlockPool
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey
from shared.kv.pool_values import HeldBlock, Refusal, SealItem
from shared.messages.pool import Attach
from shared.messages.transfer import KvGeometry

NUM_SLOTS = 10


def make_line() -> tuple[BlockPool, SlotLine]:
    pool = BlockPool(NUM_SLOTS, LruEviction())
    return pool, SlotLine(pool)


class Asking:
    """Requests that wait in line, and the order in which they got their slots."""

    def __init__(self, line: SlotLine, group: asyncio.TaskGroup) -> None:
        self._line = line
        self._group = group
        self.order: list[str] = []
        self.results: dict[str, Sequence[HeldBlock] | Refusal] = {}

    async def ask(self, handle: str, num_slots: int, wait_s: float = 30.0) -> asyncio.Task[None]:
        task = self._group.create_task(self._ask(handle, num_slots, wait_s))
        await settle()
        return task

    async def _ask(self, handle: str, num_slots: int, wait_s: float) -> None:
        self.results[handle] = await self._line.allocate("w", handle, num_slots, NUM_SLOTS, wait_s)
        self.order.append(handle)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_that_come_free_go_to_those_who_wait_in_their_order() -> None:
    pool, line = make_line()
    held = pool.allocate("other", "holder", NUM_SLOTS, NUM_SLOTS)
    assert not isinstance(held, Refusal)
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        for handle, count in (("large", 8), ("small", 1), ("last", 1)):
            await asking.ask(handle, count)
        pool.free_own("other", "holder", held[:3])
        await settle()
        assert asking.order == []  # the first lacks five: nobody passes it
        newcomer = await line.allocate("w", "new", 1, NUM_SLOTS, 0.0)
        assert isinstance(newcomer, Refusal)
        pool.release("other", "holder")
        await settle()
        assert asking.order == ["large", "small", "last"]
    pool.check_integrity()


async def test_a_run_takes_what_is_left_when_those_before_it_have_theirs() -> None:
    pool, line = make_line()
    held = pool.allocate("other", "holder", NUM_SLOTS, NUM_SLOTS)
    assert not isinstance(held, Refusal)
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        await asking.ask("first", 4)
        pool.free_own("other", "holder", held[:3])
        running = group.create_task(line.take("w", "run", 8, NUM_SLOTS, 30.0))
        await settle()
        assert await line.take("w", "background", 8, NUM_SLOTS, 0.0) == []
        assert not running.done(), "three slots are there, and the first wants four"
        pool.free_own("other", "holder", held[3:9])
        await settle()
        assert asking.order == ["first"]
        assert len(running.result()) == 5
        assert await line.take("w", "run", 8, NUM_SLOTS, 30.0) == []
    pool.check_integrity()


async def test_a_run_passes_who_waits_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_line, "PASS_AFTER_S", 0.05)
    pool, line = make_line()
    assert not isinstance(pool.allocate("other", "holder", 7, NUM_SLOTS), Refusal)
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        waiting = await asking.ask("first", 4)
        assert len(await line.take("w", "run", 8, NUM_SLOTS, 30.0)) == 3
        waiting.cancel()
    pool.check_integrity()


async def test_blocks_that_are_no_longer_held_are_evicted_for_who_waits() -> None:
    pool, line = make_line()
    given = pool.allocate("w", "reader", 1, NUM_SLOTS)
    assert not isinstance(given, Refusal)
    key = BlockKey(bytes(16))
    pool.seal("w", "reader", 0, [key], [SealItem(given[0].slot, given[0].generation, 1, key)])
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        await asking.ask("all", NUM_SLOTS)
        assert asking.order == []
        pool.release("w", "reader")
        await settle()
        assert asking.order == ["all"]
    assert not pool.is_readable(key)


async def test_who_waited_long_is_passed_by_those_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the first lacks may be held by the second until it goes on."""
    monkeypatch.setattr(slot_line, "PASS_AFTER_S", 0.05)
    pool, line = make_line()
    pool.allocate("w", "second", 5, NUM_SLOTS)  # as a prefix that it holds
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        await asking.ask("first", 8)
        second = await asking.ask("second", 2)
        await second
        assert asking.order == ["second"]
        pool.release("w", "second")
    assert asking.order == ["second", "first"]


async def test_a_full_share_keeps_nobody_else_waiting() -> None:
    pool, line = make_line()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(line.allocate("greedy", "a", 3, 2, 30.0))
        await settle()
        other = group.create_task(line.allocate("modest", "b", 3, NUM_SLOTS, 30.0))
        async with asyncio.timeout(5):
            assert not isinstance(await other, Refusal)
        waiting.cancel()
    pool.check_integrity()


async def test_the_wait_ends_with_a_refusal_and_leaves_nothing() -> None:
    pool, line = make_line()
    pool.allocate("other", "holder", NUM_SLOTS - 1, NUM_SLOTS)
    given = await line.allocate("w", "late", 2, NUM_SLOTS, 0.01)
    assert given == Refusal("pool_full", 2, 1)
    assert not isinstance(await line.allocate("w", "one", 1, NUM_SLOTS, 0.0), Refusal)
    assert pool.counts.free == 0


async def test_who_is_cancelled_leaves_the_line_to_the_next() -> None:
    pool, line = make_line()
    pool.allocate("w", "holder", 5, NUM_SLOTS)
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        first = await asking.ask("first", 8)
        await asking.ask("second", 5)
        first.cancel()
        await settle()
        assert asking.order == ["second"]


async def test_slots_are_wanted_by_those_that_go_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_line, "WANTED_AFTER_S", 0.0)
    pool, line = make_line()
    pool.allocate("w", "m/0", NUM_SLOTS, NUM_SLOTS)
    async with asyncio.TaskGroup() as group:
        asking = Asking(line, group)
        await asking.ask("z/0", 1)
        assert not line.is_wanted("m/0")
        await asking.ask("z/1", 1)
        assert line.is_wanted("m/0")  # tried before
        assert not line.is_wanted("m/2")
        assert line.is_wanted("zz/1")
        pool.release("w", "m/0")
    assert not line.is_wanted("m/0")


def test_of_two_requests_always_the_same_one_goes_before() -> None:
    handles = ["a/0", "b/0", "a/1", "b/2", "plain", "x/y/0"]
    assert sorted(handles, key=rank) == ["b/2", "a/1", "a/0", "b/0", "plain", "x/y/0"]


@pytest.mark.parametrize(
    ("num_slots", "context_blocks", "cap"),
    [(65, 32, 48), (40, 32, 40), (1_000, 32, 500), (3, 1, 2)],
)
def test_a_worker_may_hold_half_of_the_pool_or_its_longest_context_and_a_half(
    num_slots: int, context_blocks: int, cap: int
) -> None:
    worker = Attach(
        instance="w",
        incarnation="1",
        role="prefill",
        root=b"r",
        geometry=KvGeometry(num_layers=1, block_tokens=1, token_bytes=1),
        context_blocks=context_blocks,
    )
    assert default_cap(worker, num_slots) == cap
