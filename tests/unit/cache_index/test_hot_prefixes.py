"""Hot prefixes: what is shared is counted once for each use, whatever is folded."""

import random

import pytest

from services.cache_index import hot_prefixes
from services.cache_index.hot_prefixes import HALF_LIFE_S, HotPrefixes

ROOT = b"r" * 16


def chain(*parts: bytes) -> bytes:
    return b"".join(parts)


def keys(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(16 * count)


def test_a_shared_prefix_has_the_uses_of_all_that_go_on_from_it() -> None:
    hot, system = HotPrefixes(), keys(0, 4)
    for seed in range(1, 11):
        tail = keys(seed, 12)
        for _ in range(2):
            hot.use(ROOT, chain(system, tail), 16, 0.0)
    first, *rest = hot.top(20, 0.0)
    assert (first.key, first.num_blocks) == (system[-16:], 4)
    assert {one.num_blocks for one in rest} == {16}
    assert first.uses_per_s == pytest.approx(10 * rest[0].uses_per_s)


def test_uses_decay_by_half_in_their_half_life() -> None:
    hot, one = HotPrefixes(), keys(0, 1)
    for _ in range(100):
        hot.use(ROOT, one, 1, 0.0)
    now = hot.top(1, 0.0)[0].uses_per_s
    assert hot.top(1, HALF_LIFE_S)[0].uses_per_s == pytest.approx(now / 2)
    hot.use(ROOT, one, 1, 100 * HALF_LIFE_S)
    assert hot.top(1, 100 * HALF_LIFE_S)[0].uses_per_s == pytest.approx(now / 100)


def test_a_steady_rate_is_named_as_it_is() -> None:
    hot, one = HotPrefixes(), keys(0, 3)
    for at in range(6_000):
        hot.use(ROOT, one, 3, at / 10)
    assert hot.top(1, 600.0)[0].uses_per_s == pytest.approx(10, rel=0.02)


def test_what_does_not_fit_is_folded_into_its_prefix_and_hot_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hot_prefixes, "MAX_TRACKED", 64)
    monkeypatch.setattr(hot_prefixes, "KEPT", 32)
    hot, system, popular = HotPrefixes(), keys(0, 2), keys(1, 8)
    rng = random.Random(3)
    for _ in range(2_000):
        hot.use(ROOT, chain(system, rng.randbytes(16 * 6)), 8, 0.0)
        hot.use(ROOT, popular, 8, 0.0)
        assert len(hot) <= 65
    found = {one.key: one for one in hot.top(100, 0.0)}
    rate = found[popular[-16:]].uses_per_s
    assert found[system[-16:]].uses_per_s == pytest.approx(rate, rel=0.05)


def test_what_others_tell_adds_up_and_is_not_told_again() -> None:
    one, other, prefix = HotPrefixes(), HotPrefixes(), keys(0, 5)
    for _ in range(3):
        one.use(ROOT, prefix, 5, 0.0)
    batch = one.take_unsent()
    assert [used.uses for used in batch] == [3.0]
    assert one.take_unsent() == []
    other.use(ROOT, prefix, 4, 0.0)
    other.hear(batch, 0.0)
    assert [used.uses for used in other.take_unsent()] == [1.0]
    (both,) = other.top(5, 0.0)
    assert (both.num_blocks, both.key) == (4, prefix[48:64])
    (alone,) = one.top(5, 0.0)
    assert both.uses_per_s == pytest.approx(4 / 3 * alone.uses_per_s)
