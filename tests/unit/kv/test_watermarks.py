"""When slots are freed ahead of need."""

from dataclasses import replace

from shared.kv.block_pool import BlockPool
from shared.kv.eviction.lru import LruEviction
from shared.kv.watermarks import BATCH, Watermarks

COUNTS = BlockPool(1000, LruEviction()).counts


def test_below_the_low_mark_slots_are_freed_up_to_the_high_one() -> None:
    marks = Watermarks.of_shares(0.01, 0.03, 1000)
    assert (marks.low, marks.high) == (10, 30)
    assert not marks.is_below(replace(COUNTS, free=10))
    few = replace(COUNTS, free=9, evictable=900)
    assert marks.is_below(few)
    assert marks.batch(few) == 21
    assert marks.batch(replace(few, evictable=5)) == 5
    assert marks.batch(replace(few, free=30)) == 0
    assert marks.batch(replace(few, free=31)) == 0


def test_a_batch_is_small() -> None:
    marks = Watermarks.of_shares(0.5, 0.6, 1000)
    assert marks.batch(replace(COUNTS, free=0, evictable=1000)) == BATCH


def test_a_small_pool_frees_ahead_only_where_it_must() -> None:
    assert Watermarks.of_shares(0.01, 0.03, 20) == Watermarks(0, 0)
    assert Watermarks.of_shares(0.01, 0.03, 20, at_least=1) == Watermarks(1, 2)
    assert Watermarks.of_shares(0.5, 0.2, 1, at_least=1) == Watermarks(1, 1)
