"""How residency lies in Redis: names, and which fields of which segment an event changes. Pure.

One hash per segment of 64 blocks of a chain, named by the segment's first block. Field = first 8
bytes of a block's key; value = its replicas, 5 bytes each: number (u32, big endian), tier.
A chain's segments are one Redis Cluster slot each.

A *number* stands for one writer's session with one node incarnation and is never used twice: what
a late writer or an old incarnation still writes goes to a number that nobody reads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shared.kv.ids import KEY_BYTES, SEGMENT_BLOCKS
from shared.kv.residency import FINGERPRINT_BYTES
from shared.messages.index import RemovedRun, ResidencyEvent, StoredRun

SEGMENT_PATTERN = b"mp:{????????:*}"
TIER_DRAM = 0
NUMBER_BYTES = 4
REPLICA_BYTES = NUMBER_BYTES + 1


@dataclass(slots=True)
class SegmentChange:
    """Fields of one segment to be stored for, or removed from, one number."""

    stored: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one node up to and with event `seq`, by segment key."""

    seq: int
    changes: dict[bytes, SegmentChange]

    @property
    def num_fields(self) -> int:
        return sum(len(c.stored) + len(c.removed) for c in self.changes.values())


def segment_key(root: bytes, head: bytes) -> bytes:
    return f"mp:{{{root[:4].hex()}:{head.hex()}}}".encode()


def field_of(key: bytes) -> bytes:
    return key[:FINGERPRINT_BYTES]


def print_of(field_name: bytes) -> int:
    """The fingerprint that the mirror knows this field by."""
    return int.from_bytes(field_name, "little")


def pack_replica(number: int, tier: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big") + bytes([tier])


def numbers_in(value: bytes) -> list[int]:
    return [
        int.from_bytes(value[at : at + NUMBER_BYTES], "big")
        for at in range(0, len(value), REPLICA_BYTES)
    ]


def changes_of_event(event: ResidencyEvent) -> Batch:
    """What one event changes. Removals come first, as in the pool."""
    changes: dict[bytes, SegmentChange] = {}
    for removed in event.removed:
        for head, key in _removed_fields(removed):
            change = changes.setdefault(segment_key(event.root, head), SegmentChange())
            change.removed.append(field_of(key))
    for batch in changes_of_runs(event.root, event.stored, event.seq):
        for segment, stored in batch.changes.items():
            changes.setdefault(segment, SegmentChange()).stored.extend(stored.stored)
    return Batch(event.seq, changes)


def changes_of_runs(
    root: bytes, runs: Iterable[StoredRun], seq: int, max_fields: int = 4_096
) -> Iterator[Batch]:
    """Stored runs in batches of about `max_fields`; at least one batch."""
    changes: dict[bytes, SegmentChange] = {}
    num_fields = 0
    for run in runs:
        for head, keys in _stored_fields(run):
            change = changes.setdefault(segment_key(root, head), SegmentChange())
            change.stored.extend(field_of(key) for key in keys)
            num_fields += len(keys)
            if num_fields >= max_fields:
                yield Batch(seq, changes)
                changes, num_fields = {}, 0
    yield Batch(seq, changes)


def _stored_fields(run: StoredRun) -> Iterator[tuple[bytes, list[bytes]]]:
    """The run's keys by segment."""
    keys = [run.keys[at : at + KEY_BYTES] for at in range(0, len(run.keys), KEY_BYTES)]
    head = run.head
    taken = 0
    while taken < len(keys):
        index = run.start + taken
        if index % SEGMENT_BLOCKS == 0:
            head = keys[taken]
        room = SEGMENT_BLOCKS - index % SEGMENT_BLOCKS
        yield head, keys[taken : taken + room]
        taken += room


def _removed_fields(run: RemovedRun) -> Iterator[tuple[bytes, bytes]]:
    for at in range(0, min(len(run.keys), len(run.heads)), KEY_BYTES):
        yield run.heads[at : at + KEY_BYTES], run.keys[at : at + KEY_BYTES]
