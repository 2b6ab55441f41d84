"""What every transport promises. A test module gives the bench; pytest runs the class on it."""

import asyncio
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest

from shared.transport.base import Peer, PeerLost, Slice, Transport

BLOCK_BYTES = 1 << 20
NUM_SLOTS = 16


class TransportBench(Protocol):
    """A transport with one peer, as a test sees them."""

    transport: Transport
    peer: Peer

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        """Bytes of an own slot."""

    def theirs(self, slot: int) -> npt.NDArray[np.uint8]:
        """Bytes of a slot of the peer."""

    def generation(self, slot: int) -> int:
        """Generation of a slot of the peer."""

    def reuse(self, slot: int) -> None:
        """The peer gives a slot to something else."""

    def kill_peer(self) -> None:
        """The peer's process is gone."""

    def slow_down(self) -> None:
        """From now on a read of many slices takes seconds."""


def whole(bench: TransportBench, peer_slot: int, slot: int) -> Slice:
    return Slice(peer_slot, bench.generation(peer_slot), slot, 0, BLOCK_BYTES)


def fill(bench: TransportBench, slot: int) -> npt.NDArray[np.uint8]:
    generator = np.random.default_rng(slot)
    bench.theirs(slot)[:] = generator.integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
    return bench.theirs(slot).copy()


def many(bench: TransportBench) -> list[Slice]:
    return [whole(bench, n % NUM_SLOTS, n % NUM_SLOTS) for n in range(20_000)]


async def assert_nothing_writes(bench: TransportBench) -> None:
    """What is put into own slots now stays."""
    for slot in range(NUM_SLOTS):
        bench.own(slot)[:] = 0x5A
    await asyncio.sleep(0.1)
    for slot in range(NUM_SLOTS):
        assert (bench.own(slot) == 0x5A).all()


class TransportContract:
    async def test_bytes_arrive_in_the_slots_that_were_named(self, bench: TransportBench) -> None:
        expected = {slot: fill(bench, slot) for slot in range(4)}
        slices = [whole(bench, slot, slot + 8) for slot in range(4)]
        assert await bench.transport.read(bench.peer, slices, timeout_s=5) == 4
        for slot, data in expected.items():
            assert np.array_equal(bench.own(slot + 8), data)

    async def test_a_slice_touches_nothing_but_itself(self, bench: TransportBench) -> None:
        data = fill(bench, 3)
        bench.own(5)[:] = 7
        part = Slice(3, bench.generation(3), 5, 1000, 500)
        assert await bench.transport.read(bench.peer, [part], timeout_s=5) == 1
        assert np.array_equal(bench.own(5)[1000:1500], data[1000:1500])
        assert (bench.own(5)[:1000] == 7).all()
        assert (bench.own(5)[1500:] == 7).all()

    async def test_a_reused_slot_ends_the_run_before_it(self, bench: TransportBench) -> None:
        slices = [whole(bench, slot, slot) for slot in range(4)]
        bench.reuse(2)
        assert await bench.transport.read(bench.peer, slices, timeout_s=5) == 2

    async def test_reading_nothing_reads_nothing(self, bench: TransportBench) -> None:
        assert await bench.transport.read(bench.peer, [], timeout_s=5) == 0

    async def test_an_unknown_incarnation_is_lost(self, bench: TransportBench) -> None:
        other = Peer(bench.peer.node, "another")
        with pytest.raises(PeerLost):
            await bench.transport.connect(other)
        with pytest.raises(PeerLost):
            await bench.transport.read(other, [whole(bench, 0, 0)], timeout_s=5)

    async def test_a_dead_peer_is_lost(self, bench: TransportBench) -> None:
        await bench.transport.connect(bench.peer)
        bench.kill_peer()
        with pytest.raises(PeerLost):
            await bench.transport.read(bench.peer, [whole(bench, 0, 0)], timeout_s=5)

    async def test_after_a_timeout_nothing_writes(self, bench: TransportBench) -> None:
        bench.slow_down()
        with pytest.raises(TimeoutError):
            await bench.transport.read(bench.peer, many(bench), timeout_s=0.05)
        await assert_nothing_writes(bench)

    async def test_after_a_cancel_nothing_writes(self, bench: TransportBench) -> None:
        bench.slow_down()
        reading = asyncio.ensure_future(bench.transport.read(bench.peer, many(bench), timeout_s=30))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await assert_nothing_writes(bench)

    async def test_abort_ends_reads_with_peer_lost_and_nothing_writes(
        self, bench: TransportBench
    ) -> None:
        bench.slow_down()
        reading = asyncio.ensure_future(bench.transport.read(bench.peer, many(bench), timeout_s=30))
        await asyncio.sleep(0.05)
        bench.transport.abort(bench.peer)
        with pytest.raises(PeerLost):
            await reading
        await assert_nothing_writes(bench)

    async def test_reads_of_one_peer_run_at_once(self, bench: TransportBench) -> None:
        expected = [fill(bench, slot) for slot in range(8)]
        done = await asyncio.gather(
            *(
                bench.transport.read(bench.peer, [whole(bench, slot, slot)], timeout_s=5)
                for slot in range(8)
            )
        )
        assert done == [1] * 8
        for slot, data in enumerate(expected):
            assert np.array_equal(bench.own(slot), data)
