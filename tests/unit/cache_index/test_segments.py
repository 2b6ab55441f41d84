"""How events lie in Redis."""

import pytest

from services.cache_index.segments import (
    changes_of_event,
    changes_of_runs,
    field_of,
    numbers_in,
    pack_replica,
    segment_key,
)
from shared.kv.ids import SEGMENT_BLOCKS
from shared.messages.index import RemovedRun, ResidencyEvent, StoredRun

ROOT = b"\xab" * 16
KEYS = [index.to_bytes(16, "big") for index in range(1, 200)]


def run(start: int, end: int) -> StoredRun:
    head = KEYS[start - start % SEGMENT_BLOCKS]
    parent = KEYS[start - 1] if start else b""
    return StoredRun(start=start, head=head, parent=parent, keys=b"".join(KEYS[start:end]))


def test_a_run_over_segment_borders_is_split_by_its_own_heads() -> None:
    (batch,) = changes_of_runs(ROOT, [run(10, 150)], seq=3)
    assert batch.seq == 3
    assert {segment: len(change.stored) for segment, change in batch.changes.items()} == {
        segment_key(ROOT, KEYS[0]): 54,
        segment_key(ROOT, KEYS[64]): 64,
        segment_key(ROOT, KEYS[128]): 22,
    }


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 64), (63, 65), (64, 128), (100, 101)])
def test_a_block_has_one_segment_however_it_was_stored(start: int, end: int) -> None:
    whole = next(iter(changes_of_runs(ROOT, [run(0, 199)], seq=1)))
    part = next(iter(changes_of_runs(ROOT, [run(start, end)], seq=1)))
    assert part.num_fields == end - start
    for segment, change in part.changes.items():
        assert set(change.stored) <= set(whole.changes[segment].stored)


def test_a_removal_names_the_same_segment_as_the_store() -> None:
    event = ResidencyEvent(
        node="n",
        incarnation="i",
        root=ROOT,
        seq=2,
        removed=[RemovedRun(heads=KEYS[64] + KEYS[0], keys=KEYS[70] + KEYS[3])],
        stored=[run(3, 4)],
    )
    batch = changes_of_event(event)
    assert batch.changes[segment_key(ROOT, KEYS[64])].removed == [field_of(KEYS[70])]
    assert batch.changes[segment_key(ROOT, KEYS[0])].removed == [field_of(KEYS[3])]
    assert batch.changes[segment_key(ROOT, KEYS[0])].stored == [field_of(KEYS[3])]


def test_large_inventories_come_in_batches_and_none_is_lost() -> None:
    batches = list(changes_of_runs(ROOT, [run(0, 100), run(100, 199)], seq=9, max_fields=70))
    assert len(batches) == 3
    assert sum(batch.num_fields for batch in batches) == 199


def test_nothing_held_is_still_one_batch_to_commit() -> None:
    assert [batch.num_fields for batch in changes_of_runs(ROOT, [], seq=0)] == [0]


def test_numbers_of_a_value_are_read_back() -> None:
    value = pack_replica(1, 0) + pack_replica(2**32 - 1, 1)
    assert numbers_in(value) == [1, 2**32 - 1]
