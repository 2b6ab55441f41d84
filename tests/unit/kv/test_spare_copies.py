"""Which blocks go first when other nodes have copies; and looking ahead without letting any go."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shared.kv.block_pool import BlockPool
from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.kv.ids import BlockKey
from shared.kv.pool_values import Refusal, SealItem
from shared.kv.spare_copies import spare_first

NUM_SLOTS = 64
SCORED = ("lru", "lfu", "decayed_frequency")
"""Policies with a score for each block: looking ahead tells exactly what would go."""


def key(*path: int) -> BlockKey:
    return BlockKey(bytes(path).ljust(16, b"\xff"))


def chain(*path: int) -> list[BlockKey]:
    return [key(*path[: length + 1]) for length in range(len(path))]


def store(pool: BlockPool, keys: list[BlockKey]) -> None:
    have = len(pool.lease("w", "h", keys))
    given = pool.allocate("w", "h", len(keys) - have, NUM_SLOTS)
    assert not isinstance(given, Refusal)
    items = [
        SealItem(block.slot, block.generation, 0, keys[have + at]) for at, block in enumerate(given)
    ]
    pool.seal("w", "h", have, keys, items)
    pool.release("w", "h")


def pool_of(paths: list[list[int]], policy: str = "lru") -> BlockPool:
    pool = BlockPool(NUM_SLOTS, EVICTION_POLICIES[policy]())
    for path in paths:
        store(pool, chain(*path))
    return pool


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12)


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(1, NUM_SLOTS))
def test_looking_ahead_lets_nothing_go_and_names_children_before_parents(
    policy: str, paths: list[list[int]], limit: int
) -> None:
    pool = pool_of(paths, policy)
    before = pool.counts
    victims = pool.next_victims(limit)
    assert pool.counts == before
    pool.check_integrity()
    seen: set[BlockKey] = set()
    for place in victims:
        assert place.parent not in seen
        seen.add(place.key)
    assert len(seen) == len(victims) == min(limit, before.sealed)
    assert pool.evict(NUM_SLOTS) == before.sealed
    pool.check_integrity()


@pytest.mark.parametrize("policy", SCORED)
@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(1, NUM_SLOTS))
def test_what_looking_ahead_names_is_what_goes(
    policy: str, paths: list[list[int]], limit: int
) -> None:
    pool = pool_of(paths, policy)
    for place in pool.next_victims(limit):
        assert pool.next_victims(1) == [place]
        pool.evict(1)
        assert not pool.is_readable(place.key)


@settings(max_examples=150, deadline=None)
@given(PATHS, st.integers(1, 24), st.randoms(use_true_random=False))
def test_spare_copies_go_before_last_ones_and_the_pool_stays_closed(
    paths: list[list[int]], count: int, rng: random.Random
) -> None:
    pool = pool_of(paths)
    victims = pool.next_victims(4 * count)
    copies = [rng.choice([0, 0, 1, 3]) for _ in victims]
    chosen = spare_first(victims, copies, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(victims))
    num_copies = {place.key: have for place, have in zip(victims, copies, strict=True)}
    for each in chosen:
        if not num_copies[each]:
            # Every spare one that is still there has a last copy below it.
            here = [place for place in victims if pool.is_readable(place.key)]
            needed = {key for one in here if not num_copies[one.key] for key in pool.path(one.key)}
            assert all(one.key in needed for one in here)
        assert pool.evict_blocks([each]) == 1
    pool.check_integrity()


def test_a_last_copy_stays_while_a_warmer_spare_one_can_go() -> None:
    pool = pool_of([[1, 1], [2, 2], [3, 3]])
    victims = pool.next_victims(6)
    assert victims[0].key == key(1, 1)
    copies = [1 if place.key[0] == 2 else 0 for place in victims]
    assert pool.evict_blocks(spare_first(victims, copies, 2)) == 2
    assert [pool.is_readable(key(n, n)) for n in (1, 2, 3)] == [True, False, True]
    assert [pool.is_readable(key(n)) for n in (1, 2, 3)] == [True, False, True]


def test_what_is_held_by_now_or_has_children_by_now_is_not_evicted() -> None:
    pool = pool_of([[1], [2], [3]])
    victims = [place.key for place in pool.next_victims(3)]
    pool.lease("w", "reader", [key(1)])
    store(pool, chain(2, 1))
    assert pool.evict_blocks(victims) == 1
    assert [pool.is_readable(key(n)) for n in (1, 2, 3)] == [True, True, False]
    pool.check_integrity()
