"""Two segments in one process: LocalTransport against the contract, and what only it has."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from shared.transport import local
from shared.transport.base import Peer, PeerLost
from shared.transport.local import LocalTransport
from shared.transport.node_files import NodeFiles, NodeLock
from shared.transport.segment import Segment
from tests.contracts.transport_contract import (
    BLOCK_BYTES,
    NUM_SLOTS,
    TransportContract,
    fill,
    whole,
)
from tests.support.deadline import until


class LocalBench:
    def __init__(self, folder: Path) -> None:
        self.files = NodeFiles(folder, "n", "1")
        self.lock = NodeLock(self.files)
        self.segment = Segment.create(
            self.files.segment, num_slots=NUM_SLOTS, block_bytes=BLOCK_BYTES
        )
        self.mine = Segment.create(
            folder / "me.1.seg", num_slots=NUM_SLOTS, block_bytes=BLOCK_BYTES
        )
        self.segment.generations[:] = 1
        self.transport = LocalTransport(self.mine)
        self.peer = Peer("n", "1", self.segment.info)

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.mine.block(slot)

    def theirs(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.segment.block(slot)

    def generation(self, slot: int) -> int:
        return int(self.segment.generations[slot])

    def reuse(self, slot: int) -> None:
        self.segment.generations[slot] += np.uint64(1)

    def kill_peer(self) -> None:
        self.lock.release()  # what the kernel does for a process that is gone

    def slow_down(self) -> None:
        """20,000 blocks of 1 MiB take seconds by themselves."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[LocalBench]:
    bench = LocalBench(tmp_path)
    yield bench
    await bench.transport.close()
    bench.lock.release()
    bench.segment.close()
    bench.mine.close()


class TestLocalTransport(TransportContract):
    pass


async def test_a_descriptor_of_another_segment_is_refused(bench: LocalBench) -> None:
    stale = replace(bench.segment.info, nonce=bytes(16))
    with pytest.raises(PeerLost, match="nonce"):
        await bench.transport.connect(Peer("n", "1", stale))
    larger = replace(bench.segment.info, num_slots=NUM_SLOTS + 1)
    with pytest.raises(PeerLost, match="num_slots"):
        await bench.transport.connect(Peer("n", "1", larger))
    other_blocks = replace(bench.segment.info, block_bytes=4096)
    with pytest.raises(PeerLost, match="block_bytes"):
        await bench.transport.connect(Peer("n", "1", other_blocks))
    await bench.transport.connect(bench.peer)


async def test_a_peer_on_another_host_is_not_reached_this_way(bench: LocalBench) -> None:
    elsewhere = replace(bench.segment.info, path=Path("/nonexistent/n.1.seg"))
    with pytest.raises(PeerLost, match="gone, or it runs on another host"):
        await bench.transport.connect(Peer("n", "1", elsewhere))
    with pytest.raises(PeerLost, match="offers no segment"):
        await bench.transport.connect(Peer("n", "1", None))


async def test_an_unlinked_segment_of_a_living_peer_stays_readable(bench: LocalBench) -> None:
    data = fill(bench, 1)
    await bench.transport.connect(bench.peer)
    bench.files.segment.unlink()
    assert await bench.transport.read(bench.peer, [whole(bench, 1, 2)], timeout_s=5) == 1
    assert np.array_equal(bench.own(2), data)


async def test_what_is_mapped_of_a_dead_peer_is_given_back(
    bench: LocalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LOOK_S", 0.02)
    before = psutil.Process().num_fds()
    await bench.transport.connect(bench.peer)
    assert psutil.Process().num_fds() > before
    await asyncio.sleep(0.1)  # looked at several times
    assert psutil.Process().num_fds() > before, "a living peer stays mapped"
    bench.kill_peer()
    await until(lambda: psutil.Process().num_fds() < before, what="it is unmapped")
