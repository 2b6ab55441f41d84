"""Fetching when the peer is slow, damaged, reused or dying: the run is shorter, nothing leaks."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from services.transfer import stripes
from services.transfer.fetcher import Fetcher
from services.transfer.flow import Flow
from services.transfer.node_pool import NodePool
from services.transfer.peers import PeerLease
from services.transfer.read_evidence import ReadEvidence
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey
from shared.kv.pool_values import SealItem
from shared.messages.common import ErrorCode, FetchSource, NodeRef
from shared.messages.pool import FetchBlocks, FetchBlocksReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.transport.base import Peer
from shared.transport.checksum import block_checksum
from shared.transport.fake import FakePeer, FakeTransport
from shared.transport.router import Router
from shared.transport.segment import Segment
from tests.support.deadline import until
from tests.support.transfer_node import GEOMETRY, ROOT, block_bytes_of, make_chain, request_ref

NUM_SLOTS = 16
NUM_BLOCKS = 10
HERE = NodeRef(id="here", incarnation="1")
THERE = NodeRef(id="there", incarnation="1")
CHAIN = make_chain(NUM_BLOCKS, seed=7)
KEYS = split(CHAIN)


@dataclass
class FakePeers:
    """The other node's answers, without a bus."""

    memory: FakePeer
    ttl_s: float = 5.0
    failure: Exception | None = None
    leased: list[list[BlockKey]] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)
    evidence: ReadEvidence = field(default_factory=ReadEvidence)

    async def find(self, node: NodeRef, pool: NodePool, remaining_s: float) -> Peer:
        return Peer(node.id, node.incarnation)

    async def lease(
        self, node: NodeRef, root: bytes, chain: list[BlockKey], start: int, remaining_s: float
    ) -> PeerLease:
        keys = chain[start:]
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.leased.append(list(keys))
        slots = [KEYS.index(key) for key in keys]
        return PeerLease(
            "lease",
            slots,
            [self.memory.generations[slot] for slot in slots],
            [block_checksum(self.memory.blocks[slot], GEOMETRY, 16) for slot in slots],
            monotonic_s() + 0.8 * self.ttl_s,
        )

    async def release(self, node: NodeRef, lease_id: str, bad_keys: bytes = b"") -> None:
        self.released.append(bad_keys)

    def forget(self, node: NodeRef) -> None:
        return None


@dataclass
class Bench:
    pool: NodePool
    memory: FakePeer
    peers: FakePeers
    fetcher: Fetcher
    flow: Flow

    async def fetch(
        self,
        handle: str = "r",
        remaining_ms: int = 5_000,
        urgency: Literal["request", "background"] = "request",
    ) -> FetchBlocksReply:
        request = FetchBlocks(
            handle=handle,
            ref=request_ref(),
            keys=CHAIN,
            source=FetchSource(node=THERE, num_blocks=NUM_BLOCKS),
            remaining_ms=remaining_ms,
            urgency=urgency,
        )
        return await self.fetcher.fetch("w", NUM_SLOTS, request)

    def check(self, reply: FetchBlocksReply, num_blocks: int) -> None:
        """`num_blocks` are held and right; every other slot is free; the lease is given back."""
        assert len(reply.blocks.slots) == num_blocks
        for key, slot in zip(KEYS, reply.blocks.slots, strict=False):
            assert np.array_equal(self.pool.segment.block(slot), block_bytes_of(key))
        counts = self.pool.blocks.counts
        assert (counts.sealed, counts.free) == (num_blocks, NUM_SLOTS - num_blocks)
        assert self.flow.bytes_in_flight == 0
        assert len(self.peers.released) == len(self.peers.leased)
        self.pool.blocks.check_integrity()


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(stripes, "WINDOW_BYTES", 3 * GEOMETRY.block_bytes)
    segment = Segment.create(
        tmp_path / "here.1.seg", num_slots=NUM_SLOTS, block_bytes=GEOMETRY.block_bytes
    )
    memory = FakePeer(np.stack([block_bytes_of(key) for key in KEYS]), [1] * NUM_BLOCKS)
    own = segment.bytes.reshape(NUM_SLOTS, GEOMETRY.block_bytes)
    transport = FakeTransport(own)
    transport.peers[("there", "1")] = memory
    peers = FakePeers(memory)
    with ThreadPoolExecutor(1) as threads:
        pool = NodePool(ROOT, GEOMETRY, segment, threads, lambda: None)
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, logging.getLogger("test"))
            flow = Flow()
            fetcher = Fetcher(pool, HERE, Router([transport]), peers, tasks, flow)  # type: ignore[arg-type]
            yield Bench(pool, memory, peers, fetcher, flow)
    del own
    pool.close()


async def settle() -> None:
    """Releases at the peer go out in tasks of their own."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_blocks_of_a_healthy_peer_arrive(bench: Bench) -> None:
    reply = await bench.fetch()
    await settle()
    bench.check(reply, NUM_BLOCKS)
    assert reply.fetched_bytes == NUM_BLOCKS * GEOMETRY.block_bytes


@pytest.mark.parametrize(("dies_after", "expected"), [(0, 0), (4, 3), (9, 9)])
async def test_a_peer_that_dies_costs_the_window_that_was_moving(
    bench: Bench, dies_after: int, expected: int
) -> None:
    bench.memory.dies_after_slices = dies_after
    reply = await bench.fetch()
    await settle()
    bench.check(reply, expected)


async def test_a_slot_that_was_reused_there_ends_the_run(bench: Bench) -> None:
    original = bench.peers.lease

    async def lease_then_lose(*arguments: object) -> PeerLease:
        lease = await original(*arguments)  # type: ignore[arg-type]
        bench.memory.generations[4] += 1  # the lease expired and another block moved in
        bench.memory.blocks[4] = 0
        return lease

    bench.peers.lease = lease_then_lose  # type: ignore[method-assign,assignment]
    reply = await bench.fetch()
    await settle()
    bench.check(reply, 4)


async def test_a_damaged_block_is_a_miss_and_is_told_to_its_node(bench: Bench) -> None:
    bench.memory.flips_slice = 5
    reply = await bench.fetch()
    await settle()
    bench.check(reply, 5)
    assert bench.pool.checksum_failures_total == 1
    assert bench.peers.released == [KEYS[5]]


async def test_reading_stops_before_the_lease_ends(bench: Bench) -> None:
    bench.memory.latency_s = 0.05
    bench.peers.ttl_s = 0.3  # 0.24 s to read in: one window of three, not two
    started_s = monotonic_s()
    reply = await bench.fetch()
    await settle()
    assert monotonic_s() - started_s < 1.0
    bench.check(reply, 3)


async def test_the_deadline_of_the_request_shortens_the_run(bench: Bench) -> None:
    bench.memory.latency_s = 0.05
    reply = await bench.fetch(remaining_ms=240)
    await settle()
    bench.check(reply, 3)


async def test_a_peer_that_refuses_is_a_miss(bench: Bench) -> None:
    bench.peers.failure = ServiceError(ErrorCode.VOID_INCARNATION, "gone")
    reply = await bench.fetch()
    bench.check(reply, 0)
    assert reply.transport == "none"


async def test_a_full_pool_takes_what_has_room(bench: Bench) -> None:
    bench.pool.blocks.allocate("other", "h", NUM_SLOTS - 4, NUM_SLOTS)
    reply = await bench.fetch()
    await settle()
    assert len(reply.blocks.slots) == 4
    bench.pool.blocks.release_owner("other")
    bench.check(reply, 4)


async def test_a_fetch_leaves_slots_to_who_waited_before_it(bench: Bench) -> None:
    blocks = bench.pool.blocks
    blocks.allocate("other", "h", NUM_SLOTS - 4, NUM_SLOTS)
    waiting = asyncio.ensure_future(bench.pool.line.allocate("w", "old", 5, NUM_SLOTS, 30.0))
    await settle()
    fetching = asyncio.ensure_future(bench.fetch())
    await until(lambda: bench.peers.leased)
    await settle()
    assert blocks.num_available("w", NUM_SLOTS) == 4, "the older request lacks one"
    blocks.release_owner("other")
    assert len(await waiting) == 5
    reply = await fetching
    await settle()
    assert len(reply.blocks.slots) == NUM_BLOCKS
    blocks.release("w", "old")
    bench.check(reply, NUM_BLOCKS)


async def test_a_second_fetch_waits_for_the_first_and_moves_nothing(bench: Bench) -> None:
    bench.memory.latency_s = 0.005
    first, second = await asyncio.gather(bench.fetch("r1"), bench.fetch("r2"))
    await settle()
    assert len(bench.peers.leased) == 1
    assert second.blocks == first.blocks
    bench.check(second, NUM_BLOCKS)


async def test_a_request_does_not_wait_for_replication_of_the_same_blocks(bench: Bench) -> None:
    bench.memory.latency_s = 30.0
    replicating = asyncio.ensure_future(bench.fetch("copy", urgency="background"))
    await until(lambda: bench.flow.bytes_in_flight > 0)
    bench.memory.latency_s = 0.0
    reply = await bench.fetch("r", remaining_ms=2_000)
    assert len(reply.blocks.slots) == NUM_SLOTS - NUM_BLOCKS
    replicating.cancel()
    await asyncio.wait([replicating])
    bench.pool.blocks.release("w", "copy")
    await settle()
    bench.pool.blocks.check_integrity()


async def test_when_the_first_fetch_is_stopped_the_second_goes_on(bench: Bench) -> None:
    bench.memory.latency_s = 0.01
    first = asyncio.ensure_future(bench.fetch("r1"))
    second = asyncio.ensure_future(bench.fetch("r2"))
    await asyncio.sleep(0.05)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    bench.pool.blocks.release("w", "r1")
    reply = await second
    await settle()
    bench.check(reply, NUM_BLOCKS)


async def test_a_stopped_fetch_leaves_no_slot_behind(bench: Bench) -> None:
    bench.memory.latency_s = 0.01
    for delay_s in (0.0, 0.005, 0.02, 0.05):
        fetching = asyncio.ensure_future(bench.fetch())
        await asyncio.sleep(delay_s)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        bench.pool.blocks.release("w", "r")
        counts = bench.pool.blocks.counts
        assert (counts.writing, counts.private, counts.held) == (0, 0, 0)
        bench.pool.blocks.check_integrity()
    await settle()
    assert len(bench.peers.released) == len(bench.peers.leased)


async def test_what_a_failed_fetch_evicted_is_told_to_the_index(bench: Bench) -> None:
    blocks = bench.pool.blocks
    old = split(make_chain(NUM_SLOTS, seed=8))
    given = blocks.allocate("w", "old", NUM_SLOTS, NUM_SLOTS)
    assert isinstance(given, list)
    items = [
        SealItem(block.slot, block.generation, 1, key)
        for block, key in zip(given, old, strict=True)
    ]
    blocks.seal("w", "old", 0, old, items)
    blocks.release("w", "old")
    bench.memory.dies_after_slices = 0
    evicted_when_told: list[int] = []
    bench.pool.on_change = lambda: evicted_when_told.append(blocks.counts.evictions_total)
    reply = await bench.fetch()
    assert reply.blocks.slots == []
    assert evicted_when_told == [NUM_BLOCKS]


async def test_a_damaged_copy_takes_no_good_one_of_its_key_with_it(bench: Bench) -> None:
    pool = bench.pool
    held = (await bench.fetch()).blocks
    pool.segment.block(held.slots[0])[0] ^= 1
    damaged = pool.blocks.readable(KEYS[0])
    pool.blocks.quarantine(KEYS[0])  # another reader found it first
    pool.blocks.release("w", "r")
    await bench.fetch("again")
    assert damaged is not None
    pool._quarantine(damaged)
    assert pool.blocks.num_leading(KEYS) == NUM_BLOCKS


async def test_a_damaged_block_is_held_by_no_call_of_the_handle_that_checks_it(
    bench: Bench,
) -> None:
    reply = await bench.fetch("first")
    bench.pool.segment.block(reply.blocks.slots[6])[0] ^= 1
    runs = await asyncio.gather(
        bench.pool.lease_verified("w", "same", KEYS, NUM_SLOTS),
        bench.pool.lease_verified("w", "same", KEYS, NUM_SLOTS),
    )
    assert [len(run) for run in runs] == [6, 6]


async def test_a_check_that_was_stopped_proves_nothing(bench: Bench) -> None:
    reply = await bench.fetch("first")
    bench.pool.segment.block(reply.blocks.slots[6])[0] ^= 1
    async with asyncio.TaskGroup() as group:
        checking = group.create_task(bench.pool.lease_verified("w", "same", KEYS, NUM_SLOTS))
        await asyncio.sleep(0)
        checking.cancel()
    assert len(await bench.pool.lease_verified("w", "same", KEYS, NUM_SLOTS)) == 6
