"""A run that several nodes hold: all are read, who fails is replaced, the rest is a miss."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from services.transfer import fetcher as fetcher_module
from services.transfer import stripes
from services.transfer.fetcher import Fetcher
from services.transfer.flow import Flow
from services.transfer.node_pool import NodePool
from services.transfer.peers import PeerLease
from services.transfer.read_evidence import ReadEvidence
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey
from shared.messages.common import ErrorCode, FetchSource, NodeRef, Replica
from shared.messages.pool import FetchBlocks, FetchBlocksReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.transport.base import Peer
from shared.transport.checksum import block_checksum
from shared.transport.fake import FakePeer, FakeTransport
from shared.transport.router import Router
from shared.transport.segment import Segment
from tests.support.transfer_node import GEOMETRY, ROOT, block_bytes_of, make_chain, request_ref

NUM_BLOCKS, NUM_SLOTS = 24, 32
CHAIN = make_chain(NUM_BLOCKS, seed=11)
KEYS = split(CHAIN)
NODES = [NodeRef(id=name, incarnation="1") for name in ("n0", "n1", "n2")]


@dataclass
class Cluster:
    """Three nodes with all blocks, as one sees them that has none."""

    pool: NodePool
    memories: dict[str, FakePeer]
    gone: set[str] = field(default_factory=set)
    released: dict[str, bytes] = field(default_factory=dict)
    fetcher: Fetcher | None = None

    async def find(self, node: NodeRef, pool: NodePool, remaining_s: float) -> Peer:
        if node.id in self.gone:
            raise ServiceError(ErrorCode.PEER_LOST, "gone")
        return Peer(node.id, node.incarnation)

    async def lease(
        self, node: NodeRef, root: bytes, chain: list[BlockKey], start: int, remaining_s: float
    ) -> PeerLease:
        keys = chain[start:]
        await asyncio.sleep(0)
        memory = self.memories[node.id]
        slots = [KEYS.index(key) for key in keys]
        return PeerLease(
            node.id,
            slots,
            [memory.generations[slot] for slot in slots],
            [block_checksum(block_bytes_of(key), GEOMETRY, 16) for key in keys],
            monotonic_s() + 5.0,
        )

    async def release(self, node: NodeRef, lease_id: str, bad_keys: bytes = b"") -> None:
        self.released[node.id] = bad_keys

    def forget(self, node: NodeRef) -> None:
        return None

    @property
    def evidence(self) -> ReadEvidence:
        return ReadEvidence()

    async def fetch(self, depths: tuple[int, ...] = (NUM_BLOCKS,) * 3) -> FetchBlocksReply:
        replicas = [
            Replica(node=node, num_blocks=depth) for node, depth in zip(NODES, depths, strict=False)
        ]
        source = FetchSource(
            node=replicas[0].node, num_blocks=replicas[0].num_blocks, others=replicas[1:]
        )
        assert self.fetcher is not None
        request = FetchBlocks(handle="r", ref=request_ref(), keys=CHAIN, source=source)
        reply = await self.fetcher.fetch("w", NUM_SLOTS, request)
        await asyncio.sleep(0.01)
        return reply

    def check(self, reply: FetchBlocksReply, num_blocks: int) -> None:
        assert len(reply.blocks.slots) == num_blocks
        for key, slot in zip(KEYS, reply.blocks.slots, strict=False):
            assert np.array_equal(self.pool.segment.block(slot), block_bytes_of(key))
        counts = self.pool.blocks.counts
        assert (counts.sealed, counts.free) == (num_blocks, NUM_SLOTS - num_blocks)
        self.pool.blocks.check_integrity()

    @property
    def shares(self) -> list[int]:
        return [self.memories[node.id].slices_read for node in NODES]


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(stripes, "WINDOW_BYTES", 2 * GEOMETRY.block_bytes)
    monkeypatch.setattr(fetcher_module, "MIN_STRIPED_BYTES", 4 * GEOMETRY.block_bytes)
    segment = Segment.create(
        tmp_path / "here.1.seg", num_slots=NUM_SLOTS, block_bytes=GEOMETRY.block_bytes
    )
    own = segment.bytes.reshape(NUM_SLOTS, GEOMETRY.block_bytes)
    transport = FakeTransport(own)
    blocks = np.stack([block_bytes_of(key) for key in KEYS])
    for node in NODES:
        memory = FakePeer(blocks.copy(), [1] * NUM_BLOCKS, latency_s=0.002)
        transport.peers[node.id, node.incarnation] = memory
    memories = {node.id: transport.peers[node.id, "1"] for node in NODES}
    with ThreadPoolExecutor(1) as threads:
        pool = NodePool(ROOT, GEOMETRY, segment, threads, lambda: None)
        async with asyncio.TaskGroup() as group:
            cluster = Cluster(pool, memories)
            cluster.fetcher = Fetcher(
                pool,
                NodeRef(id="here", incarnation="1"),
                Router([transport]),
                cluster,  # type: ignore[arg-type]
                Tasks(group, logging.getLogger("test")),
                Flow(),
            )
            yield cluster
    del own
    pool.close()


async def test_all_holders_bring_a_part(cluster: Cluster) -> None:
    cluster.check(await cluster.fetch(), NUM_BLOCKS)
    assert sum(cluster.shares) == NUM_BLOCKS
    assert min(cluster.shares) >= 4
    assert set(cluster.released) == {"n0", "n1", "n2"}


async def test_the_slow_one_brings_less(cluster: Cluster) -> None:
    cluster.memories["n1"].latency_s = 0.05
    cluster.check(await cluster.fetch(), NUM_BLOCKS)
    assert cluster.shares[1] <= 4


async def test_a_short_holder_is_asked_for_what_it_has(cluster: Cluster) -> None:
    cluster.check(await cluster.fetch((6, NUM_BLOCKS, 9)), NUM_BLOCKS)
    assert cluster.shares[0] <= 6
    assert cluster.shares[2] <= 9


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_what_a_dead_holder_did_not_bring_comes_from_the_others(
    cluster: Cluster, after: int
) -> None:
    cluster.memories["n0"].dies_after_slices = after
    cluster.check(await cluster.fetch(), NUM_BLOCKS)


async def test_a_damaged_block_comes_from_another_and_its_node_is_told(cluster: Cluster) -> None:
    cluster.memories["n2"].flips_slice = 1
    cluster.check(await cluster.fetch(), NUM_BLOCKS)
    assert len(cluster.released["n2"]) == 16
    assert cluster.released["n0"] == b""


async def test_a_reused_slot_comes_from_another(cluster: Cluster) -> None:
    original = cluster.lease

    async def lease_then_lose(*arguments: object) -> PeerLease:
        lease = await original(*arguments)  # type: ignore[arg-type]
        if lease.lease_id == "n0":
            cluster.memories["n0"].generations[0] += 1
        return lease

    cluster.lease = lease_then_lose  # type: ignore[method-assign,assignment]
    cluster.check(await cluster.fetch(), NUM_BLOCKS)


async def test_only_what_nobody_brings_is_missing(cluster: Cluster) -> None:
    for node in NODES:
        cluster.memories[node.id].dies_after_slices = 4
    reply = await cluster.fetch()
    assert 4 <= len(reply.blocks.slots) < NUM_BLOCKS
    cluster.check(reply, len(reply.blocks.slots))


async def test_a_small_run_comes_from_one_and_the_next_is_asked_when_it_is_gone(
    cluster: Cluster,
) -> None:
    reply = await cluster.fetch((3, 3, 3))
    cluster.check(reply, 3)
    assert cluster.shares == [3, 0, 0]
    assert set(cluster.released) == {"n0"}
    cluster.pool.blocks.release("w", "r")
    cluster.pool.blocks.quarantine(KEYS[0])
    cluster.gone.add("n0")
    cluster.check(await cluster.fetch((3, 3, 3)), 3)
    assert cluster.shares == [3, 3, 0]


async def test_a_stopped_fetch_leaves_no_slot_and_no_lease(cluster: Cluster) -> None:
    fetching = asyncio.ensure_future(cluster.fetch())
    await asyncio.sleep(0.01)
    fetching.cancel()
    await asyncio.wait([fetching])
    cluster.pool.blocks.release("w", "r")
    await asyncio.sleep(0.01)
    counts = cluster.pool.blocks.counts
    assert (counts.writing, counts.private, counts.held) == (0, 0, 0)
    assert set(cluster.released) == {"n0", "n1", "n2"}
