"""How residency lies in Redis: names, and which fields of which segment an event changes. Pure.

One segment for 64 blocks of a chain, named by its first block. Field = first 8 bytes of a block's
key; value = its replicas, 5 bytes each: number (u32, big endian) and mark. The mark has the tier in
its low bit and the depth class of the block above. A segment is one Redis Cluster slot.

A *number* stands for one writer's session with one node incarnation and is never used twice: what
a late writer or an old incarnation still writes goes to a number that nobody reads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shared.kv.fingerprints import FINGERPRINT_BYTES, NUM_CLASSES, depth_classes
from shared.kv.ids import KEY_BYTES, SEGMENT_BLOCKS
from shared.kv.print_table import Classes, Prints
from shared.messages.index import RemovedRun, StoredRun, Tier

SEGMENT_PATTERN = b"mp:{????????:*"
NUMBER_BYTES = 4
REPLICA_BYTES = NUMBER_BYTES + 1


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """Fields of one segment to be removed from, then stored for, one number; all packed."""

    segment: bytes
    removed: bytes = b""
    stored: bytes = b""
    marks: bytes = b""

    @property
    def num_fields(self) -> int:
        return (len(self.removed) + len(self.stored)) // FINGERPRINT_BYTES


def segment_key(root: bytes, head: bytes) -> bytes:
    return f"mp:{{{root[:4].hex()}:{head[:8].hex()}}}".encode()


def meta_key(segment: bytes) -> bytes:
    """Where the number of the segment's buckets is; not of the segments' pattern."""
    return b"mn" + segment[2:]


def segment_of(bucket: bytes) -> bytes:
    """The segment that a key which was found belongs to."""
    return bucket[: bucket.index(b"}") + 1]


def number_bytes(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def within_horizon(change: SegmentChange, horizon: int) -> SegmentChange:
    """Without the stores of blocks that are too deep in their chains."""
    if horizon >= NUM_CLASSES or not change.stored:
        return change
    is_kept = np.frombuffer(change.marks, np.uint8) >> 1 < horizon
    fields = np.frombuffer(change.stored, np.uint64)
    marks = np.frombuffer(change.marks, np.uint8)
    return replace(change, stored=fields[is_kept].tobytes(), marks=marks[is_kept].tobytes())


def marks_of(classes: Classes, tier: Tier) -> bytes:
    return (classes << 1 | (tier == "disk")).astype(np.uint8).tobytes()


def fields_of(keys: bytes) -> bytes:
    """The fields of packed keys, packed."""
    return np.frombuffer(keys, np.uint64)[::2].tobytes()


@dataclass(frozen=True, slots=True)
class Replicas:
    """What a page of Redis says: one entry per replica, as columns."""

    prints: Prints
    numbers: npt.NDArray[np.uint32]
    classes: Classes
    is_on_disk: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.prints)


def replicas_in(page: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> Replicas:
    """All replicas of some segments; a value or field that is not ours is left out."""
    names: list[bytes] = []
    values: list[bytes] = []
    for _, fields in page:
        names += fields.keys()
        values += fields.values()
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    packed = b"".join(names)
    if len(packed) != len(names) * FINGERPRINT_BYTES or (lengths % REPLICA_BYTES).any():
        return replicas_in([(b"", _only_ours(names, values))])
    prints = np.frombuffer(packed, np.uint64)
    rows = np.frombuffer(b"".join(values), np.uint8).reshape(-1, REPLICA_BYTES)
    numbers = rows[:, :NUMBER_BYTES].copy().view(">u4")[:, 0].astype(np.uint32)
    return Replicas(
        prints=np.repeat(prints, lengths // REPLICA_BYTES),
        numbers=numbers,
        classes=np.minimum(rows[:, -1] >> 1, NUM_CLASSES - 1),
        is_on_disk=(rows[:, -1] & 1).astype(np.bool_),
    )


def _only_ours(names: list[bytes], values: list[bytes]) -> dict[bytes, bytes]:
    return {
        name: value
        for name, value in zip(names, values, strict=True)
        if len(name) == FINGERPRINT_BYTES and len(value) % REPLICA_BYTES == 0
    }


def changes_of_run(root: bytes, run: StoredRun) -> Iterator[SegmentChange]:
    """The run's blocks by segment."""
    classes = depth_classes(run.start, len(run.keys) // KEY_BYTES)
    for head, first, keys in segments_of(run):
        marks = marks_of(classes[first : first + len(keys) // KEY_BYTES], run.tier)
        yield SegmentChange(segment_key(root, head), stored=fields_of(keys), marks=marks)


def segments_of(run: StoredRun) -> Iterator[tuple[bytes, int, bytes]]:
    """(first block of the segment, offset in the run, keys) of each segment that a run is in."""
    head, taken, count = run.head, 0, len(run.keys) // KEY_BYTES
    while taken < count:
        index = run.start + taken
        room = SEGMENT_BLOCKS - index % SEGMENT_BLOCKS
        keys = run.keys[taken * KEY_BYTES : (taken + room) * KEY_BYTES]
        if index % SEGMENT_BLOCKS == 0:
            head = keys[:KEY_BYTES]
        yield head, taken, keys
        taken += room


def removed_blocks(run: RemovedRun) -> Iterator[tuple[bytes, bytes]]:
    """(first block of the segment, key) of each block."""
    for at in range(0, min(len(run.keys), len(run.heads)), KEY_BYTES):
        yield run.heads[at : at + KEY_BYTES], run.keys[at : at + KEY_BYTES]
