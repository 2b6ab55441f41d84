"""Slots freed ahead of need: spare copies first, by policy alone when nobody answers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from services.transfer.node_pool import NodePool
from services.transfer.room_keeper import AskCopies, RoomKeeper
from shared.kv.block_pool import BlockPool
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey
from shared.kv.pool_values import Refusal, SealItem
from shared.kv.watermarks import Watermarks
from tests.support.deadline import until

NUM_SLOTS = 16


@dataclass
class Pool:
    blocks: BlockPool = field(default_factory=lambda: BlockPool(NUM_SLOTS, LruEviction()))
    on_change: Callable[[], None] = lambda: None


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 16)


def full_pool() -> Pool:
    """Sixteen chains of one block, the first the coldest."""
    pool = Pool()
    for number in range(NUM_SLOTS):
        (given,) = _allocated(pool.blocks)
        pool.blocks.seal(
            "w", "h", 0, [key(number)], [SealItem(given.slot, given.generation, 0, key(number))]
        )
        pool.blocks.release("w", "h")
    return pool


def _allocated(blocks: BlockPool):  # type: ignore[no-untyped-def]
    given = blocks.allocate("w", "h", 1, NUM_SLOTS)
    assert not isinstance(given, Refusal)
    return given


async def keep(pool: Pool, ask: AskCopies | None, num_free: int = 4) -> list[int]:
    """Who is still there when so many slots are free."""
    keeper = RoomKeeper(cast(NodePool, pool), Watermarks(num_free, num_free), None, ask)
    running = asyncio.ensure_future(keeper.run())
    keeper.poke()
    await until(lambda: pool.blocks.counts.free >= num_free)
    running.cancel()
    await asyncio.wait([running])
    pool.blocks.check_integrity()
    return [number for number in range(NUM_SLOTS) if pool.blocks.is_readable(key(number))]


async def test_of_what_is_cold_spare_copies_go_and_last_ones_stay() -> None:
    asked: list[Sequence[BlockKey]] = []

    async def ask(keys: Sequence[BlockKey]) -> Sequence[int] | None:
        asked.append(keys)
        return bytes(1 if each in (key(1), key(5), key(6), key(9)) else 0 for each in keys)

    left = await keep(full_pool(), ask)
    assert left == [0, 2, 3, 4, 7, 8, *range(10, NUM_SLOTS)]
    assert len(asked) == 1


async def test_when_all_are_last_copies_the_coldest_go() -> None:
    async def ask(keys: Sequence[BlockKey]) -> Sequence[int] | None:
        return bytes(len(keys))

    assert await keep(full_pool(), ask) == list(range(4, NUM_SLOTS))


async def test_without_an_answer_the_policy_decides_and_it_is_not_asked_again_soon() -> None:
    num_asked = 0

    async def ask(_: Sequence[BlockKey]) -> Sequence[int] | None:
        nonlocal num_asked
        num_asked += 1
        return None

    assert await keep(full_pool(), ask) == list(range(4, NUM_SLOTS))
    assert num_asked == 1


async def test_what_is_held_when_the_answer_comes_is_passed_over() -> None:
    pool = full_pool()

    async def ask(keys: Sequence[BlockKey]) -> Sequence[int] | None:
        pool.blocks.lease("reader", "r", [key(1)])
        return bytes(1 if each in (key(1), key(2)) else 0 for each in keys)

    left = await keep(pool, ask)
    assert 1 in left
    assert 2 not in left
    assert len(left) == NUM_SLOTS - 4
