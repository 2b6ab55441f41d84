"""The pool's rules, one by one."""

from collections.abc import Sequence

import pytest

from shared.kv.block_pool import BlockPool
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey, Generation, Slot
from shared.kv.pool_values import HeldBlock, NotYours, Refusal, SealedItem, SealItem
from shared.kv.residency_log import ResidencyChange

CAP = 1000


def key(name: str) -> BlockKey:
    return BlockKey(name.encode().ljust(16, b"."))


def chain(name: str, length: int) -> list[BlockKey]:
    return [key(f"{name}{index}") for index in range(length)]


class SpyEviction(LruEviction):
    """Notes which ends of uses it hears of."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[list[Slot]] = []

    def ended(self, slots: Sequence[Slot]) -> None:
        self.heard.append(list(slots))
        super().ended(slots)


def make_pool(num_slots: int) -> BlockPool:
    return BlockPool(num_slots, LruEviction())


def allocate(pool: BlockPool, owner: str, handle: str, count: int) -> list[HeldBlock]:
    given = pool.allocate(owner, handle, count, CAP)
    assert isinstance(given, list), given
    return given


def store(
    pool: BlockPool, keys: list[BlockKey], *, owner: str = "w", handle: str = "h", start: int = 0
) -> list[SealedItem]:
    """Allocate and seal keys[start:]."""
    given = allocate(pool, owner, handle, len(keys) - start)
    items = [
        SealItem(block.slot, block.generation, 7, name)
        for block, name in zip(given, keys[start:], strict=True)
    ]
    return pool.seal(owner, handle, start, keys, items)


def all_changes(pool: BlockPool) -> list[ResidencyChange]:
    changes: list[ResidencyChange] = []
    while (change := pool.drain_change()) is not None:
        changes.append(change)
    return changes


def test_a_sealed_chain_is_leased_from_its_start() -> None:
    pool = make_pool(8)
    keys = chain("a", 3)
    sealed = store(pool, keys)
    run = pool.lease("other", "h2", [*keys, key("missing"), keys[0]])
    assert [block.slot for block in run] == [item.block.slot for item in sealed]
    assert all(block.checksum == 7 for block in run)
    assert pool.lease("other", "h2", [key("missing"), keys[0]]) == []
    pool.check_integrity()


def test_allocate_gives_all_or_none() -> None:
    pool = make_pool(4)
    allocate(pool, "w", "h", 3)
    assert pool.allocate("w", "h", 2, CAP) == Refusal("pool_full", 2, 1)
    assert pool.counts.free == 1


def test_allocate_is_refused_over_the_cap_of_the_owner_alone() -> None:
    pool = make_pool(10)
    allocate(pool, "w", "h", 3)
    assert pool.allocate("w", "h2", 2, cap=4) == Refusal("over_cap", 2, 1)
    assert isinstance(pool.allocate("x", "h", 2, cap=4), list)


def test_eviction_takes_the_least_recently_used_leaf_first() -> None:
    pool = make_pool(4)
    old, new = chain("old", 2), chain("new", 2)
    store(pool, old)
    store(pool, new)
    pool.release("w", "h")
    pool.lease("r", "h", old)
    pool.release("r", "h")
    allocate(pool, "w", "x", 1)
    assert [pool.is_readable(each) for each in (*old, *new)] == [True, True, True, False]
    allocate(pool, "w", "x", 1)
    assert [pool.is_readable(each) for each in (*old, *new)] == [True, True, False, False]
    allocate(pool, "w", "x", 1)
    assert [pool.is_readable(each) for each in old] == [True, False]
    assert pool.counts.evictions_total == 3
    pool.check_integrity()


def test_evicting_a_leased_block_is_refused() -> None:
    pool = make_pool(2)
    keys = chain("a", 2)
    store(pool, keys)
    pool.release("w", "h")
    pool.lease("r", "h", keys[:1])
    assert pool.allocate("w", "x", 2, CAP) == Refusal("pool_full", 2, 1)
    allocate(pool, "w", "x", 1)
    assert pool.is_readable(keys[0])
    assert not pool.is_readable(keys[1])


def test_a_parent_of_a_leased_block_is_not_evicted() -> None:
    pool = make_pool(3)
    keys = chain("a", 3)
    store(pool, keys, handle="deep")
    pool.release("w", "deep")
    pool.lease("r", "h", keys[2:])
    assert pool.counts.evictable == 0
    assert pool.allocate("w", "x", 1, CAP) == Refusal("pool_full", 1, 0)
    pool.release("r", "h")
    assert pool.counts.evictable == 3
    allocate(pool, "w", "x", 3)


def test_a_slot_gets_another_generation_at_each_use() -> None:
    pool = make_pool(1)
    seen = set()
    for _ in range(3):
        (block,) = allocate(pool, "w", "h", 1)
        seen.add(block.generation)
        pool.release("w", "h")
    assert len(seen) == 3


def test_a_second_seal_of_a_key_frees_its_slot_and_holds_the_first() -> None:
    pool = make_pool(4)
    keys = chain("a", 2)
    first = store(pool, keys, handle="h1")
    second = store(pool, keys, handle="h2")
    assert [item.block for item in second] == [item.block for item in first]
    assert all(item.is_duplicate for item in second)
    pool.release("w", "h1")
    assert pool.counts.evictable == 0
    pool.release("w", "h2")
    assert pool.counts.evictable == 2
    pool.check_integrity()


def test_a_block_without_its_parent_here_stays_private() -> None:
    pool = make_pool(4)
    keys = chain("a", 3)
    sealed = store(pool, keys, start=1)
    assert [item.is_readable for item in sealed] == [False, False]
    assert pool.counts.private == 2
    assert pool.drain_change() is None
    pool.release("w", "h")
    assert pool.counts.free == 4


def test_a_block_without_a_key_is_private_and_ends_with_its_handle() -> None:
    pool = make_pool(2)
    (block,) = allocate(pool, "w", "h", 1)
    (item,) = pool.seal("w", "h", 0, [], [SealItem(block.slot, block.generation, 9)])
    assert not item.is_readable
    assert item.block.checksum == 9
    assert pool.release("w", "h") == 1
    assert pool.counts.free == 2


def test_sealing_what_is_not_the_callers_seals_nothing() -> None:
    pool = make_pool(4)
    mine, other = allocate(pool, "w", "h", 2)
    keys = chain("a", 2)
    for slot, generation, handle in [
        (other.slot, Generation(other.generation + 1), "h"),
        (other.slot, other.generation, "h2"),
        (mine.slot, mine.generation, "h"),
        (Slot(99), other.generation, "h"),
        (Slot(-1), other.generation, "h"),
    ]:
        good = SealItem(mine.slot, mine.generation, 1, keys[0])
        bad = SealItem(slot, generation, 1, keys[1])
        owner_items = [good, bad]
        with pytest.raises(NotYours):
            pool.seal("w", handle, 0, keys, owner_items)
        assert not pool.is_readable(keys[0])
    with pytest.raises(ValueError, match="chain"):
        pool.seal("w", "h", 1, keys, [SealItem(mine.slot, mine.generation, 1, keys[0])])


def test_a_lost_attachment_gives_everything_back() -> None:
    pool = make_pool(8)
    keys = chain("a", 2)
    store(pool, keys, owner="dead", handle="h1")
    allocate(pool, "dead", "h2", 2)
    (tail,) = allocate(pool, "dead", "h3", 1)
    pool.seal("dead", "h3", 0, [], [SealItem(tail.slot, tail.generation, 1)])
    assert pool.release_owner("dead") == 5
    counts = pool.counts
    assert (counts.free, counts.sealed, counts.held) == (6, 2, 0)
    assert pool.release_owner("dead") == 0
    pool.check_integrity()


def test_quarantine_removes_a_block_and_all_below_it_in_one_event() -> None:
    pool = make_pool(8)
    keys = chain("a", 3)
    side = [*keys[:1], *chain("b", 2)[1:]]
    sealed = store(pool, keys)
    store(pool, side, start=1)
    all_changes(pool)
    (held,) = pool.lease("r", "h", keys[1:2])
    assert pool.quarantine(keys[0]) == 4
    (change,) = all_changes(pool)
    order = [each for _, each in change.removed]
    assert set(order) == {*keys, side[1]}
    assert order.index(keys[2]) < order.index(keys[1]) < order.index(keys[0])
    assert pool.lease("r", "h2", keys) == []
    assert pool.counts.doomed == 4
    assert pool.generation(sealed[0].block.slot) != sealed[0].block.generation
    assert pool.generation(held.slot) == held.generation
    pool.release("w", "h")
    assert pool.counts.doomed == 1
    pool.release("r", "h")
    assert pool.counts.free == 8
    assert pool.quarantine(keys[0]) == 0
    pool.check_integrity()


def test_a_quarantined_key_can_be_stored_again() -> None:
    pool = make_pool(4)
    keys = chain("a", 1)
    store(pool, keys, handle="h1")
    pool.quarantine(keys[0])
    (item,) = store(pool, keys, handle="h2")
    assert item.is_readable
    assert not item.is_duplicate
    pool.release("w", "h1")
    assert pool.is_readable(keys[0])
    pool.check_integrity()


def test_events_are_numbered_without_gaps_and_join_runs() -> None:
    pool = make_pool(300)
    keys = chain("a", 130)
    store(pool, keys[:2])
    (first,) = all_changes(pool)
    assert first.seq == 1
    assert first.stored[0].keys == tuple(keys[:2])
    store(pool, keys, start=2)
    (second,) = all_changes(pool)
    assert second.seq == 2
    assert [(run.start, run.head, run.parent, len(run.keys)) for run in second.stored] == [
        (2, keys[0], keys[1], 62),
        (64, keys[64], keys[63], 64),
        (128, keys[128], keys[127], 2),
    ]


def test_what_comes_and_goes_within_one_event_is_not_in_it() -> None:
    pool = make_pool(4)
    keys = chain("a", 2)
    store(pool, keys)
    pool.quarantine(keys[1])
    (change,) = all_changes(pool)
    assert [run.keys for run in change.stored] == [(keys[0],)]
    assert change.removed == ()
    pool.quarantine(keys[0])
    store(pool, keys[:1])
    assert all_changes(pool) == []


def test_large_changes_are_cut_so_that_every_event_leaves_closed_chains() -> None:
    pool = make_pool(8)
    keys = chain("a", 6)
    store(pool, keys)
    stored: list[BlockKey] = []
    while (change := pool.log.drain(max_blocks=4)) is not None:
        stored += [each for run in change.stored for each in run.keys]
    assert stored == keys
    pool.quarantine(keys[0])
    first = pool.log.drain(max_blocks=4)
    assert first is not None
    assert [each for _, each in first.removed] == keys[:1:-1]


def test_the_inventory_in_pages_is_the_readable_set() -> None:
    pool = make_pool(64)
    expected = set()
    for number in range(5):
        keys = chain(f"c{number}-", 7)
        store(pool, keys)
        expected |= set(keys)
    pool.quarantine(key("c2-3"))
    expected -= {key(f"c2-{index}") for index in range(3, 7)}
    found: list[BlockKey] = []
    cursor: int | None = 0
    while cursor is not None:
        runs, cursor = pool.inventory(cursor, 4)
        found += [each for run in runs for each in run.keys]
    assert len(found) == len(expected)
    assert set(found) == expected


def test_leases_of_one_owner_are_capped() -> None:
    pool = make_pool(8)
    keys = chain("a", 5)
    store(pool, keys)
    assert len(pool.lease("r", "h", keys, cap=3)) == 3
    assert len(pool.lease("r", "h", keys, cap=3)) == 3
    assert len(pool.lease("r", "another handle", keys, cap=3)) == 3
    assert len(pool.lease("r2", "h", keys, cap=3)) == 3


def test_holds_and_slots_can_be_given_back_early() -> None:
    pool = make_pool(4)
    keys = chain("a", 2)
    sealed = store(pool, keys)
    mine = allocate(pool, "w", "h", 2)
    pool.free_own("w", "h", [mine[0], sealed[0].block])
    pool.drop("w", "h", [sealed[1].block.slot, mine[1].slot])
    counts = pool.counts
    assert (counts.free, counts.writing, counts.evictable, counts.held) == (1, 1, 1, 1)
    pool.check_integrity()


def test_a_slot_that_the_handle_has_again_is_not_given_back_for_its_first_use() -> None:
    pool = make_pool(3)
    keys = chain("a", 1)
    first = allocate(pool, "w", "h", 1)
    store(pool, keys)
    # The same block came from elsewhere meanwhile: the slot is freed, and taken again at once.
    (sealed,) = pool.seal(
        "w", "h", 0, keys, [SealItem(first[0].slot, first[0].generation, 7, keys[0])]
    )
    assert sealed.is_duplicate
    again = allocate(pool, "w", "h", 1)
    assert again[0].slot == first[0].slot
    pool.free_own("w", "h", first)
    assert pool.is_writing("w", "h", again[0].slot)
    pool.free_own("w", "h", again)
    assert not pool.is_writing("w", "h", again[0].slot)
    pool.check_integrity()


def test_eviction_hears_of_no_end_of_what_was_no_use() -> None:
    policy = SpyEviction()
    pool = BlockPool(4, policy)
    keys = chain("a", 2)
    slots = [item.block.slot for item in store(pool, keys)]
    pool.release("w", "h")
    assert policy.heard == [slots]
    pool.lease("ssd", "1", keys, is_use=False)
    pool.release("ssd", "1", is_use=False)
    assert policy.heard == [slots]
    pool.check_integrity()
