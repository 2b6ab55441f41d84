"""The fake keeps the contract of transports, so what is tested with it holds for real ones."""

import asyncio
import random

import numpy as np
import numpy.typing as npt
import pytest

from shared.transport.base import Peer, PeerLost, Slice
from shared.transport.fake import FakePeer, FakeTransport
from tests.contracts.transport_contract import (
    BLOCK_BYTES,
    NUM_SLOTS,
    TransportContract,
    fill,
    whole,
)


class FakeBench:
    def __init__(self) -> None:
        self.memory = np.zeros((NUM_SLOTS, BLOCK_BYTES), dtype=np.uint8)
        self.transport = FakeTransport(self.memory)
        self.peer = Peer("n", "1")
        self.fake = FakePeer(np.zeros((NUM_SLOTS, BLOCK_BYTES), dtype=np.uint8), [1] * NUM_SLOTS)
        self.transport.peers[("n", "1")] = self.fake

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.memory[slot]

    def theirs(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.fake.blocks[slot]

    def generation(self, slot: int) -> int:
        return self.fake.generations[slot]

    def reuse(self, slot: int) -> None:
        self.fake.generations[slot] += 1

    def kill_peer(self) -> None:
        self.fake.is_alive = False

    def slow_down(self) -> None:
        self.fake.latency_s = 0.02


@pytest.fixture
def bench() -> FakeBench:
    return FakeBench()


class TestFakeTransport(TransportContract):
    pass


def numbered(bench: FakeBench, count: int) -> list[Slice]:
    for slot in range(count):
        fill(bench, slot)
    return [whole(bench, slot, slot) for slot in range(count)]


async def test_a_slow_peer_takes_the_time_of_its_bytes(bench: FakeBench) -> None:
    bench.fake.bytes_per_s = 20 * BLOCK_BYTES
    slices = numbered(bench, 8)
    with pytest.raises(TimeoutError):
        await bench.transport.read(bench.peer, slices, timeout_s=0.1)
    assert not bench.own(7).any()


async def test_a_lost_slice_ends_only_with_the_time(bench: FakeBench) -> None:
    bench.fake.loses_slice = 1
    with pytest.raises(TimeoutError):
        await bench.transport.read(bench.peer, numbered(bench, 3), timeout_s=0.05)
    assert bench.own(0).any()
    assert not bench.own(1).any()


async def test_slices_that_arrive_in_another_order_are_all_there_at_the_end(
    bench: FakeBench,
) -> None:
    bench.fake.order = random.Random(3)
    slices = numbered(bench, 8)
    bench.reuse(5)
    assert await bench.transport.read(bench.peer, slices, timeout_s=5) == 5
    assert np.array_equal(bench.own(7), bench.theirs(7))


async def test_a_late_slice_lands_before_the_call_is_over(bench: FakeBench) -> None:
    bench.fake.latency_s, bench.fake.late_s = 10.0, 0.05
    slices = numbered(bench, 1)
    reading = asyncio.ensure_future(bench.transport.read(bench.peer, slices, timeout_s=30))
    await asyncio.sleep(0.01)
    reading.cancel()
    await asyncio.sleep(0.01)
    assert not reading.done()
    assert not bench.own(0).any()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert np.array_equal(bench.own(0), bench.theirs(0))


async def test_a_death_ends_what_runs_and_is_told_once(bench: FakeBench) -> None:
    told: list[str] = []
    bench.transport.on_peer_lost = lambda peer, reason: told.append(f"{peer.node} {reason}")
    bench.fake.latency_s = 10.0
    reading = asyncio.ensure_future(
        bench.transport.read(bench.peer, numbered(bench, 1), timeout_s=30)
    )
    await asyncio.sleep(0)
    bench.transport.die(bench.peer)
    with pytest.raises(PeerLost):
        await reading
    assert told == ["n died"]
