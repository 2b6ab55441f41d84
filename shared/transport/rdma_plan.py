"""What one-sided transfers are made of: which bytes, in which order, and how far they hold.

Pure but for the memory that it names. A slot's generation is read before and after its bytes: a
slice counts when both are what was asked for.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from shared.transport.base import RdmaAddress, Slice
from shared.transport.ucx_context import Region
from shared.transport.ucx_endpoint import Flush, Operation, Step

PIECE_BYTES = 4 << 20
"""Of one get or put: what can no longer be stopped once submitted."""
BATCH_SLICES = 256
GENERATION_BYTES = 8
GAP_SLOTS = 31
"""Generations this far apart are read in one get."""
SCRATCH_BYTES = BATCH_SLICES * (GAP_SLOTS + 1) * GENERATION_BYTES
"""Enough for the generations of any batch."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Registered memory of one job."""

    region: Region
    offset: int
    memory: memoryview
    """Of the whole region."""

    @property
    def address(self) -> int:
        return self.region.address + self.offset


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring slots whose generations are read at once, and their place in the scratch."""

    first_slot: int
    num_slots: int
    offset: int


def batches(slices: Sequence[Slice]) -> Iterator[Sequence[Slice]]:
    for at in range(0, len(slices), BATCH_SLICES):
        yield slices[at : at + BATCH_SLICES]


def spans_of(slots: Sequence[int]) -> list[Span]:
    """As few spans as the gaps allow; in total never more than SCRATCH_BYTES for a batch."""
    spans: list[Span] = []
    offset = 0
    for slot in sorted(set(slots)):
        last = spans[-1] if spans else None
        if last is not None and slot - (last.first_slot + last.num_slots) < GAP_SLOTS:
            spans[-1] = Span(last.first_slot, slot - last.first_slot + 1, last.offset)
        else:
            spans.append(Span(slot, 1, offset))
        offset = spans[-1].offset + spans[-1].num_slots * GENERATION_BYTES
    return spans


def move(
    slices: Sequence[Slice], address: RdmaAddress, own: Region, scratch: Scratch, *, is_write: bool
) -> Generator[Step, None, int]:
    """The steps of one batch; returns how many leading slices hold."""
    inside = _num_inside(slices, address)
    spans = spans_of([part.peer_slot for part in slices[:inside]])
    yield _generation_gets(spans, address, scratch)
    count = _num_current(slices[:inside], spans, scratch)
    if count == 0:
        return 0
    yield [
        piece for part in slices[:count] for piece in _pieces(part, address, own, is_write=is_write)
    ]
    if is_write:
        yield Flush()
    yield _generation_gets(spans, address, scratch)
    return _num_current(slices[:count], spans, scratch)


def probe(address: RdmaAddress, scratch: Scratch) -> Generator[Step, None, int]:
    """Read one generation: the peer is reached this way."""
    yield _generation_gets([Span(0, 1, 0)], address, scratch)
    return 1


def _num_inside(slices: Sequence[Slice], address: RdmaAddress) -> int:
    """Leading slices within the peer's pool: beyond it a get would break the connection."""
    for count, part in enumerate(slices):
        if not 0 <= part.peer_slot < address.num_slots:
            return count
    return len(slices)


def _generation_gets(
    spans: Sequence[Span], address: RdmaAddress, scratch: Scratch
) -> list[Operation]:
    return [
        Operation(
            "get",
            "table",
            scratch.region,
            scratch.address + span.offset,
            address.table_address + span.first_slot * GENERATION_BYTES,
            span.num_slots * GENERATION_BYTES,
        )
        for span in spans
    ]


def _num_current(slices: Sequence[Slice], spans: Sequence[Span], scratch: Scratch) -> int:
    """Leading slices whose slot is in the use they name."""
    places = {
        span.first_slot + n: scratch.offset + span.offset + n * GENERATION_BYTES
        for span in spans
        for n in range(span.num_slots)
    }
    for count, part in enumerate(slices):
        (generation,) = struct.unpack_from("<Q", scratch.memory, places[part.peer_slot])
        if generation != part.peer_generation:
            return count
    return len(slices)


def _pieces(
    part: Slice, address: RdmaAddress, own: Region, *, is_write: bool
) -> Iterator[Operation]:
    here = own.address + part.slot * address.block_bytes + part.offset
    there = address.data_address + part.peer_slot * address.block_bytes + part.offset
    for at in range(0, part.num_bytes, PIECE_BYTES):
        num_bytes = min(PIECE_BYTES, part.num_bytes - at)
        yield Operation("put" if is_write else "get", "data", own, here + at, there + at, num_bytes)
