"""What every transport promises. A test module gives the bench; pytest runs the class on it."""

import asyncio
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from shared.transport.base import (
    InvalidSlice,
    Peer,
    PeerLost,
    Slice,
    Transport,
    WriteRefused,
)

BLOCK_BYTES = 1 << 20
NUM_SLOTS = 16


class TransportBench(Protocol):
    """A transport with one peer, as a test sees them."""

    peer: Peer

    @property
    def transport(self) -> Transport:
        """Of this process."""

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

    async def test_slices_of_any_size_and_place_arrive_whole(self, bench: TransportBench) -> None:
        random = np.random.default_rng(7)
        expected = {slot: fill(bench, slot) for slot in range(6)}
        for slot in range(6):
            bench.own(slot)[:] = 0
        sizes = [1, 63, 64, 65, 4095, 70_001, 300_001, BLOCK_BYTES]
        slices: list[Slice] = []
        for number, num_bytes in enumerate(sizes * 6):
            slot, offset = number % 6, int(random.integers(0, BLOCK_BYTES - num_bytes + 1))
            slices.append(Slice(slot, bench.generation(slot), slot, offset, num_bytes))
        assert await bench.transport.read(bench.peer, slices, timeout_s=10) == len(slices)
        for part in slices:
            where = slice(part.offset, part.offset + part.num_bytes)
            assert np.array_equal(bench.own(part.slot)[where], expected[part.peer_slot][where])

    async def test_a_slice_outside_of_an_own_slot_is_refused(self, bench: TransportBench) -> None:
        generation = bench.generation(1)
        for part in (
            Slice(1, generation, NUM_SLOTS, 0, 10),
            Slice(1, generation, -1, 0, 10),
            Slice(1, generation, 1, BLOCK_BYTES - 9, 10),
            Slice(1, generation, 1, -1, 10),
        ):
            with pytest.raises(InvalidSlice):
                await bench.transport.read(bench.peer, [part], timeout_s=5)

    async def test_a_slot_that_the_peer_has_not_is_not_read(self, bench: TransportBench) -> None:
        bench.own(2)[:] = 9
        try:
            part = Slice(NUM_SLOTS + 5, 1, 2, 0, 100)
            assert await bench.transport.read(bench.peer, [part], timeout_s=5) == 0
        except PeerLost:
            pass  # it may as well not want to speak with us any more
        assert (bench.own(2) == 9).all()

    async def test_after_a_cancel_the_peer_is_read_again(self, bench: TransportBench) -> None:
        data = fill(bench, 4)
        for _ in range(3):
            reading = asyncio.ensure_future(
                bench.transport.read(bench.peer, many(bench), timeout_s=30)
            )
            await asyncio.sleep(0.02)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            bench.own(5)[:] = 0
            assert await bench.transport.read(bench.peer, [whole(bench, 4, 5)], timeout_s=5) == 1
            assert np.array_equal(bench.own(5), data)

    async def test_an_aborted_peer_can_be_connected_again(self, bench: TransportBench) -> None:
        data = fill(bench, 3)
        await bench.transport.connect(bench.peer)
        bench.transport.abort(bench.peer)
        if bench.transport.name == "fake":
            return  # its peers are in its own memory and gone with it
        assert await bench.transport.read(bench.peer, [whole(bench, 3, 1)], timeout_s=5) == 1
        assert np.array_equal(bench.own(1), data)

    async def test_digests_are_those_of_the_bytes_that_arrived(self, bench: TransportBench) -> None:
        read_digests = getattr(bench.transport, "read_digests", None)
        if read_digests is None:
            return  # this transport does not hash; whoever asked it does
        slices = [
            Slice(slot, bench.generation(slot), slot + 8, offset, num_bytes)
            for slot, offset, num_bytes in ((0, 0, BLOCK_BYTES), (1, 3, 500_001), (2, 77, 9))
        ]
        for slot in range(3):
            fill(bench, slot)
        digests = await read_digests(bench.peer, slices, timeout_s=5)
        assert digests == [
            xxhash.xxh3_64_intdigest(
                bench.own(part.slot)[part.offset : part.offset + part.num_bytes].data
            )
            for part in slices
        ]
        bench.reuse(1)
        assert len(await read_digests(bench.peer, slices, timeout_s=5)) == 1

    async def test_a_write_that_nobody_asked_for_is_refused(self, bench: TransportBench) -> None:
        if bench.transport.name == "fake":
            return  # has no owner that could refuse
        before = fill(bench, 2)
        bench.own(3)[:] = 1
        with pytest.raises(WriteRefused):
            await bench.transport.write(bench.peer, [whole(bench, 2, 3)], timeout_s=5)
        assert np.array_equal(bench.theirs(2), before)
