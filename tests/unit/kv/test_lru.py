"""LRU ranks candidates by last use and keeps its heap small."""

from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey, Slot

KEY = BlockKey(bytes(16))


def test_the_candidate_used_longest_ago_goes_first() -> None:
    lru = LruEviction()
    for number in (3, 1, 2):
        lru.stored(Slot(number), KEY)
        lru.offer(Slot(number))
    assert lru.victim() == 3
    lru.used(Slot(3))
    assert lru.victim() == 1
    lru.removed(Slot(1))
    assert lru.victim() == 2
    lru.withdraw(Slot(2))
    assert lru.victim() == 3


def test_a_block_offered_late_keeps_its_place() -> None:
    lru = LruEviction()
    for number in range(3):
        lru.stored(Slot(number), KEY)
    lru.offer(Slot(2))
    lru.offer(Slot(1))
    assert lru.victim() == 1


def test_without_candidates_there_is_no_victim() -> None:
    lru = LruEviction()
    lru.stored(Slot(1), KEY)
    assert lru.victim() is None
    lru.withdraw(Slot(7))
    lru.offer(Slot(1))
    lru.withdraw(Slot(1))
    assert lru.victim() is None


def test_many_uses_do_not_grow_the_heap() -> None:
    lru = LruEviction()
    for number in range(10):
        lru.stored(Slot(number), KEY)
        lru.offer(Slot(number))
    for step in range(10_000):
        lru.used(Slot(step % 9))
    assert len(lru._heap) < 200
    assert lru.victim() == 9
