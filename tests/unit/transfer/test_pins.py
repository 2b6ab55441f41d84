"""The budget of pins, also of several that are made at once."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.transfer.node_pool import NodePool
from services.transfer.pins import OWNER, Pins
from services.transfer.promoter import Promoter
from shared.kv.block_keys import split
from shared.kv.pool_values import SealItem
from shared.messages.common import ErrorCode
from shared.messages.transfer import PinReply, PinRequest
from shared.runtime.errors import ServiceError
from shared.transport.checksum import block_checksum
from shared.transport.segment import Segment
from tests.support.transfer_node import GEOMETRY, ROOT, make_chain

NUM_SLOTS = 16
BUDGET = 4


@dataclass
class Bench:
    pool: NodePool
    pins: Pins

    def store(self, num_blocks: int, seed: int) -> bytes:
        """A chain that is here and held by nobody."""
        chain = make_chain(num_blocks, seed)
        keys = split(chain)
        given = self.pool.blocks.allocate("w", "h", num_blocks, NUM_SLOTS)
        assert isinstance(given, list)
        items = [
            SealItem(
                block.slot,
                block.generation,
                block_checksum(self.pool.segment.block(block.slot), GEOMETRY, 16),
                key,
            )
            for block, key in zip(given, keys, strict=True)
        ]
        self.pool.blocks.seal("w", "h", 0, keys, items)
        self.pool.blocks.release("w", "h")
        return chain

    async def pin(self, chain: bytes) -> PinReply:
        return await self.pins.pin(PinRequest(keys=chain, ttl_ms=60_000))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    segment = Segment.create(
        tmp_path / "here.1.seg", num_slots=NUM_SLOTS, block_bytes=GEOMETRY.block_bytes
    )
    with ThreadPoolExecutor(1) as threads:
        pool = NodePool(ROOT, GEOMETRY, segment, threads, lambda: None)
        pins = Pins(pool, Promoter(pool, None), BUDGET / NUM_SLOTS)
        yield Bench(pool, pins)
        pins.stop()
    pool.close()


async def test_two_pins_at_once_keep_the_budget_together(bench: Bench) -> None:
    one, other = bench.store(3, 1), bench.store(3, 2)
    replies = await asyncio.gather(bench.pin(one), bench.pin(other), return_exceptions=True)
    made = [reply for reply in replies if isinstance(reply, PinReply)]
    refused = [reply for reply in replies if isinstance(reply, ServiceError)]
    assert [reply.num_blocks for reply in made] == [3], "a pin is whole or refused"
    assert [error.code for error in refused] == [ErrorCode.OVERLOADED]
    assert bench.pins.num_blocks == 3


async def test_what_two_pins_want_both_counts_once(bench: Bench) -> None:
    chain = bench.store(4, 1)
    one, other = await asyncio.gather(bench.pin(chain), bench.pin(chain))
    assert (one.num_blocks, other.num_blocks) == (4, 4)
    assert bench.pins.num_blocks == BUDGET


async def test_a_pin_that_was_stopped_leaves_its_room_to_others(bench: Bench) -> None:
    one, other = bench.store(3, 1), bench.store(3, 2)
    pinning = asyncio.ensure_future(bench.pin(one))
    await asyncio.sleep(0)
    pinning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pinning
    assert bench.pool.blocks.num_held(OWNER) == 0
    assert (await bench.pin(other)).num_blocks == 3
    bench.pool.blocks.check_integrity()
