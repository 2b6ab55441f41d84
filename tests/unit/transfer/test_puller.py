"""A slot that a pull still writes is known as such until the pull has ended, well or not."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from services.transfer.flow import Flow
from services.transfer.node_pool import NodePool
from services.transfer.puller import Puller
from services.transfer.read_evidence import ReadEvidence
from shared.kv.ids import Slot
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.pool import Pull, PullItem, PullReply
from shared.runtime.errors import ServiceError
from shared.transport.base import Peer
from shared.transport.fake import FakePeer, FakeTransport
from shared.transport.router import Router
from shared.transport.segment import Segment
from tests.support.transfer_node import GEOMETRY, ROOT

THERE = NodeRef(id="there", incarnation="1")


class FakePeers:
    evidence = ReadEvidence()

    async def find(self, node: NodeRef, pool: NodePool, remaining_s: float) -> Peer:
        return Peer(node.id, node.incarnation)

    def forget(self, node: NodeRef) -> None:
        return None


@dataclass
class Bench:
    puller: Puller
    memory: FakePeer
    other_way: FakePeer
    """The same peer over the second transport."""
    slot: Slot

    async def pull(self, remaining_ms: int = 5_000) -> PullReply:
        item = PullItem(
            peer_slot=0,
            peer_generation=1,
            slot=self.slot,
            valid_tokens=GEOMETRY.block_tokens,
            first_layer=0,
            end_layer=GEOMETRY.num_layers,
        )
        request = Pull(handle="r", node=THERE, items=[item], remaining_ms=remaining_ms)
        return await self.puller.pull("w", request)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    segment = Segment.create(tmp_path / "here.1.seg", num_slots=2, block_bytes=GEOMETRY.block_bytes)
    own = segment.bytes.reshape(2, GEOMETRY.block_bytes)
    first, second = FakeTransport(own, "first"), FakeTransport(own, "second")
    memory = FakePeer(np.ones((1, GEOMETRY.block_bytes), dtype=np.uint8), [1])
    first.peers[(THERE.id, THERE.incarnation)] = memory
    other_way = FakePeer(memory.blocks, [1])
    second.peers[(THERE.id, THERE.incarnation)] = other_way
    with ThreadPoolExecutor(1) as threads:
        pool = NodePool(ROOT, GEOMETRY, segment, threads, lambda: None)
        given = pool.blocks.allocate("w", "r", 1, 2)
        assert isinstance(given, list)
        router = Router([first, second])
        puller = Puller(pool, router, FakePeers(), Flow())  # type: ignore[arg-type]
        yield Bench(puller, memory, other_way, given[0].slot)
    del own
    pool.close()


async def test_a_slot_counts_as_written_until_every_pull_into_it_has_ended(bench: Bench) -> None:
    bench.memory.latency_s = 30.0
    first = asyncio.ensure_future(bench.pull())
    second = asyncio.ensure_future(bench.pull())
    await asyncio.sleep(0)
    assert bench.puller.is_writing(bench.slot)
    first.cancel()
    await asyncio.wait([first])
    assert bench.puller.is_writing(bench.slot)
    second.cancel()
    await asyncio.wait([second])
    assert not bench.puller.is_writing(bench.slot)


async def test_a_pull_that_fails_leaves_no_slot_marked(bench: Bench) -> None:
    bench.memory.is_alive = bench.other_way.is_alive = False
    with pytest.raises(ServiceError) as caught:
        await bench.pull()
    assert caught.value.code == ErrorCode.PEER_LOST
    assert not bench.puller.is_writing(bench.slot)


async def test_a_pull_that_is_late_leaves_its_transport_for_the_next(bench: Bench) -> None:
    bench.memory.loses_slice = 0
    with pytest.raises(ServiceError) as caught:
        await bench.pull(remaining_ms=400)
    assert caught.value.code == ErrorCode.DEADLINE
    assert (await bench.pull()).transport == "second"
