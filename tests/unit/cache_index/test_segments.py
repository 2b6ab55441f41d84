"""How events lie in Redis."""

import numpy as np
import pytest

from services.cache_index.pending import PendingChanges
from services.cache_index.segments import (
    SegmentChange,
    changes_of_run,
    fields_of,
    number_bytes,
    replicas_in,
    segment_key,
    segment_of,
    within_horizon,
)
from shared.kv.fingerprints import depth_class
from shared.kv.ids import SEGMENT_BLOCKS
from shared.messages.index import RemovedRun, ResidencyEvent, StoredRun, Tier

ROOT = b"\xab" * 16
KEYS = [(index << 64).to_bytes(16, "big") for index in range(1, 200)]


def run(start: int, end: int, tier: Tier = "dram") -> StoredRun:
    head = KEYS[start - start % SEGMENT_BLOCKS]
    parent = KEYS[start - 1] if start else b""
    keys = b"".join(KEYS[start:end])
    return StoredRun(start=start, head=head, parent=parent, keys=keys, tier=tier)


def event(
    seq: int, stored: list[StoredRun] | None = None, removed: list[RemovedRun] | None = None
) -> ResidencyEvent:
    return ResidencyEvent(
        node="n", incarnation="i", root=ROOT, seq=seq, stored=stored or [], removed=removed or []
    )


def fields(change: SegmentChange) -> list[bytes]:
    return [change.stored[at : at + 8] for at in range(0, len(change.stored), 8)]


def test_a_run_over_segment_borders_is_split_by_its_own_heads() -> None:
    changes = list(changes_of_run(ROOT, run(10, 150)))
    assert [(change.segment, change.num_fields) for change in changes] == [
        (segment_key(ROOT, KEYS[0]), 54),
        (segment_key(ROOT, KEYS[64]), 64),
        (segment_key(ROOT, KEYS[128]), 22),
    ]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 64), (63, 65), (64, 128), (100, 101)])
def test_a_block_has_one_segment_however_it_was_stored(start: int, end: int) -> None:
    whole = {change.segment: change for change in changes_of_run(ROOT, run(0, 199))}
    parts = list(changes_of_run(ROOT, run(start, end)))
    assert sum(part.num_fields for part in parts) == end - start
    for part in parts:
        assert set(fields(part)) <= set(fields(whole[part.segment]))


def test_a_removal_names_the_same_segment_as_the_store_and_the_last_word_counts() -> None:
    pending = PendingChanges()
    removed = RemovedRun(heads=KEYS[64] + KEYS[0], keys=KEYS[70] + KEYS[3])
    pending.add(event(2, stored=[run(3, 4)], removed=[removed]))
    changes = {change.segment: change for change in pending.take(100)}
    assert changes[segment_key(ROOT, KEYS[64])].removed == fields_of(KEYS[70])
    assert changes[segment_key(ROOT, KEYS[0])].removed == b""
    assert changes[segment_key(ROOT, KEYS[0])].stored == fields_of(KEYS[3])
    assert not pending
    assert pending.seq == 2


def test_blocks_that_come_and_go_do_not_make_what_is_pending_grow() -> None:
    pending = PendingChanges()
    for turn in range(100):
        pending.add(event(2 * turn + 1, stored=[run(0, 100)]))
        heads = KEYS[0] * 64 + KEYS[64] * 36
        removed = RemovedRun(heads=heads, keys=b"".join(KEYS[:100]))
        pending.add(event(2 * turn + 2, removed=[removed]))
    assert pending.num_fields == 100
    changes = pending.take(64)
    assert [(len(change.removed), change.stored) for change in changes] == [(64 * 8, b"")]
    assert pending.num_fields == 36


def test_what_could_not_be_written_is_pending_again_but_what_came_since_counts_more() -> None:
    pending = PendingChanges()
    pending.add(event(1, stored=[run(0, 10)]))
    changes = pending.take(100)
    pending.add(event(2, removed=[RemovedRun(heads=KEYS[0] * 2, keys=KEYS[8] + KEYS[9])]))
    pending.put_back(changes)
    assert pending.num_fields == 10
    (change,) = pending.take(100)
    assert set(fields(change)) == {key[:8] for key in KEYS[:8]}
    assert change.removed == fields_of(KEYS[8] + KEYS[9])


def test_replicas_are_read_back_with_their_tier_and_depth() -> None:
    change = next(iter(changes_of_run(ROOT, run(63, 64, "disk"))))
    value = number_bytes(7) + change.marks + number_bytes(2**32 - 1) + bytes([5 << 1])
    page = [(b"mp:{x}", {change.stored: value}), (b"mp:{x}:1", {KEYS[0][:8]: value[:5]})]
    found = replicas_in(page)
    assert found.prints.tobytes() == change.stored * 2 + KEYS[0][:8]
    assert found.numbers.tolist() == [7, 2**32 - 1, 7]
    assert found.classes.tolist() == [depth_class(63), 5, depth_class(63)]
    assert found.is_on_disk.tolist() == [True, False, True]


def test_what_is_not_ours_in_redis_is_left_out() -> None:
    good = {KEYS[0][:8]: number_bytes(1) + b"\0"}
    found = replicas_in([(b"k", {b"short": b"12345", KEYS[1][:8]: b"four", **good})])
    assert found.numbers.tolist() == [1]
    assert not len(replicas_in([]))


def test_beyond_the_horizon_nothing_is_stored_but_removed_all_the_same() -> None:
    (change,) = changes_of_run(ROOT, run(0, 64))
    kept = within_horizon(SegmentChange(change.segment, b"r" * 8, change.stored, change.marks), 5)
    assert kept.num_fields == 6
    assert np.frombuffer(kept.marks, np.uint8).tolist() == [0, 2, 4, 6, 8]


def test_a_bucket_belongs_to_its_segment() -> None:
    segment = segment_key(ROOT, KEYS[0])
    assert segment_of(segment + b":12") == segment_of(segment) == segment
