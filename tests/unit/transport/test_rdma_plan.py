"""What one-sided transfers are made of, with a memory that is played by the test."""

import struct
from collections.abc import Generator, Sequence

import pytest

from shared.transport.base import RdmaAddress, Slice
from shared.transport.rdma_plan import (
    BATCH_SLICES,
    GAP_SLOTS,
    GENERATION_BYTES,
    PIECE_BYTES,
    SCRATCH_BYTES,
    Scratch,
    Span,
    batches,
    move,
    spans_of,
)
from shared.transport.ucx_context import Region
from shared.transport.ucx_endpoint import Flush, Operation, Step

BLOCK_BYTES = 10 << 20
ADDRESS = RdmaAddress(b"", 1 << 40, b"", 2 << 40, b"", num_slots=1000, block_bytes=BLOCK_BYTES)
OWN = Region(3 << 40, 0, b"", None)


class Peer:
    """Answers the gets of a plan from a table of generations, and keeps what was moved."""

    def __init__(self) -> None:
        self.generations = [1] * 1000
        self.memory = bytearray(SCRATCH_BYTES + 64)
        self.scratch = Scratch(Region(4 << 40, 0, b"", None), 64, memoryview(self.memory))
        self.moved: list[Operation] = []
        self.kinds: list[str] = []
        self.reused_meanwhile: list[int] = []

    def run(self, steps: Generator[Step, None, int]) -> int:
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return int(end.value)
            if isinstance(step, Flush):
                self.kinds.append("flush")
                continue
            self.kinds.append(step[0].where if step else "nothing")
            self._answer(step)

    def _answer(self, step: Sequence[Operation]) -> None:
        for operation in step:
            if operation.where == "data":
                self.moved.append(operation)
                continue
            first = (operation.remote_address - ADDRESS.table_address) // GENERATION_BYTES
            count = operation.num_bytes // GENERATION_BYTES
            at = operation.address - self.scratch.region.address
            struct.pack_into(
                f"<{count}Q", self.memory, at, *self.generations[first : first + count]
            )
        if step and step[0].where == "data":
            for slot in self.reused_meanwhile:
                self.generations[slot] += 1


def part(peer_slot: int, slot: int = 0, *, generation: int = 1, num_bytes: int = 100) -> Slice:
    return Slice(peer_slot, generation, slot, 7, num_bytes)


def test_neighbouring_generations_are_read_at_once() -> None:
    assert spans_of([5, 3, 4, 4]) == [Span(3, 3, 0)]
    assert spans_of([0, GAP_SLOTS]) == [Span(0, GAP_SLOTS + 1, 0)]
    assert spans_of([0, GAP_SLOTS + 1]) == [Span(0, 1, 0), Span(GAP_SLOTS + 1, 1, 8)]
    assert spans_of([]) == []


@pytest.mark.parametrize("step", [1, 2, 30, 31, 32, 33, 1000])
def test_the_generations_of_any_batch_have_room(step: int) -> None:
    spans = spans_of(range(0, BATCH_SLICES * step, step))
    assert sum(span.num_slots for span in spans) * GENERATION_BYTES <= SCRATCH_BYTES
    ends = [span.offset + span.num_slots * GENERATION_BYTES for span in spans]
    assert [span.offset for span in spans[1:]] == ends[:-1]


def test_batches_are_all_slices_in_order() -> None:
    slices = [part(n % 1000) for n in range(2 * BATCH_SLICES + 1)]
    cut = list(batches(slices))
    assert [len(batch) for batch in cut] == [BATCH_SLICES, BATCH_SLICES, 1]
    assert [each for batch in cut for each in batch] == slices


def test_a_read_looks_at_the_generations_before_and_after_the_bytes() -> None:
    peer = Peer()
    slices = [part(3, 1), part(900, 2)]
    assert peer.run(move(slices, ADDRESS, OWN, peer.scratch, is_write=False)) == 2
    assert peer.kinds == ["table", "data", "table"]
    assert [(op.kind, op.address, op.remote_address, op.num_bytes) for op in peer.moved] == [
        ("get", (3 << 40) + BLOCK_BYTES + 7, (2 << 40) + 3 * BLOCK_BYTES + 7, 100),
        ("get", (3 << 40) + 2 * BLOCK_BYTES + 7, (2 << 40) + 900 * BLOCK_BYTES + 7, 100),
    ]


def test_a_write_is_flushed_before_the_generations_are_looked_at_again() -> None:
    peer = Peer()
    assert peer.run(move([part(3)], ADDRESS, OWN, peer.scratch, is_write=True)) == 1
    assert peer.kinds == ["table", "data", "flush", "table"]
    assert [op.kind for op in peer.moved] == ["put"]


def test_a_large_slice_moves_in_pieces() -> None:
    peer = Peer()
    big = part(1, num_bytes=2 * PIECE_BYTES + 5)
    assert peer.run(move([big], ADDRESS, OWN, peer.scratch, is_write=False)) == 1
    assert [op.num_bytes for op in peer.moved] == [PIECE_BYTES, PIECE_BYTES, 5]
    starts = [op.remote_address for op in peer.moved]
    assert starts == [starts[0], starts[0] + PIECE_BYTES, starts[0] + 2 * PIECE_BYTES]


def test_nothing_from_a_slot_in_another_use_on_is_moved() -> None:
    peer = Peer()
    peer.generations[5] = 2
    slices = [part(4), part(5), part(6)]
    assert peer.run(move(slices, ADDRESS, OWN, peer.scratch, is_write=False)) == 1
    assert len(peer.moved) == 1


def test_a_slot_that_is_reused_while_it_is_read_does_not_count() -> None:
    peer = Peer()
    peer.reused_meanwhile = [5]
    slices = [part(4), part(5), part(6)]
    assert peer.run(move(slices, ADDRESS, OWN, peer.scratch, is_write=False)) == 1
    assert len(peer.moved) == 3


def test_slots_that_the_peer_has_not_are_not_touched() -> None:
    peer = Peer()
    for bad in (-1, 1000, 1 << 60):
        slices = [part(4), part(bad), part(6)]
        assert peer.run(move(slices, ADDRESS, OWN, peer.scratch, is_write=False)) == 1
    assert peer.run(move([part(1000)], ADDRESS, OWN, peer.scratch, is_write=False)) == 0
    assert {op.remote_address for op in peer.moved} == {(2 << 40) + 4 * BLOCK_BYTES + 7}
