"""What a caller of ResidencyView may rely on."""

import random
from collections.abc import Callable

import pytest

from shared.kv.residency import ResidencyView

KEYS = [bytes([index]) * 16 for index in range(8)]


def test_long_chains_are_matched_without_looking_at_every_block() -> None:
    chain = b"".join(index.to_bytes(8, "big") + bytes(8) for index in range(1, 4_097))
    view = ResidencyView()
    holders = [view.add_holder(b"r") for _ in range(3)]
    for holder, depth in zip(holders, (4_096, 1_000, 1), strict=True):
        view.store(holder, chain[: depth * 16])
    looked: list[int] = []
    reader = view._reader

    def counting(words: memoryview, live: int) -> Callable[[int], int]:
        read = reader(words, live)
        return lambda index: looked.append(index) or read(index)  # type: ignore[func-returns-value]

    view._reader = counting  # type: ignore[method-assign]
    depths = {depth.holder: depth.num_blocks for depth in view.match(b"r", chain)}
    assert depths == dict(zip(holders, (4_096, 1_000, 1), strict=True))
    assert len(looked) < 40


def test_a_chain_cut_within_a_key_is_refused() -> None:
    view = ResidencyView()
    with pytest.raises(ValueError, match="chain: 15 bytes"):
        view.match(b"r", bytes(15))
    with pytest.raises(ValueError, match="keys: 17 bytes"):
        view.store(view.add_holder(b"r"), bytes(17))


def test_a_dropped_holder_is_gone_at_once_and_its_place_is_used_again_after_the_sweep() -> None:
    view = ResidencyView()
    old, kept = view.add_holder(b"r"), view.add_holder(b"r")
    view.store(old, KEYS[0] + KEYS[1])
    view.store(kept, KEYS[0])
    view.drop_holder(old)
    assert [depth.holder for depth in view.match(b"r", KEYS[0] + KEYS[1])] == [kept]
    fresh = view.add_holder(b"r")
    assert fresh != old
    while not view.sweep(1):
        pass
    assert view.num_keys == 1
    assert view.add_holder(b"r") == old
    view.check_integrity()


def test_fingerprints_that_look_like_marks_of_the_table_are_blocks_like_others() -> None:
    view = ResidencyView()
    holder = view.add_holder(b"r")
    odd = bytes(16) + (1).to_bytes(8, "little") + bytes(8)
    view.store(holder, odd)
    assert [depth.num_blocks for depth in view.match(b"r", odd)] == [2]
    view.remove(holder, odd)
    assert view.match(b"r", odd) == []
    view.check_integrity()


def test_a_full_view_that_is_emptied_takes_as_much_again() -> None:
    view = ResidencyView(max_bytes=2_048 * 13 * 2)
    holder = view.add_holder(b"r")
    for turn in range(20):
        keys = random.Random(turn).randbytes(16 * 1_400)
        assert view.store(holder, keys) == 1_400
        view.remove(holder, keys)
    assert view.evicted_total == 0
    assert view.num_keys == 0
    view.check_integrity()


def test_sets_of_holders_that_no_block_has_any_more_are_given_back() -> None:
    view = ResidencyView(max_bytes=1 << 20)
    holders = [view.add_holder(b"r") for _ in range(150)]
    key = KEYS[0]
    for first in range(150):
        for second in range(first + 1, 150):
            view.store(holders[first], key)
            view.store(holders[second], key)
            view.remove(holders[first], key)
            view.remove(holders[second], key)
    view.store(holders[0], key)
    assert len(view._sets) > 10_000
    while not view.sweep(1 << 16):
        pass
    assert len(view._sets) == 1
    assert [depth.holder for depth in view.match(b"r", key)] == [holders[0]]
    view.check_integrity()


def test_too_many_different_sets_of_holders_make_the_deepest_blocks_go() -> None:
    view = ResidencyView(max_bytes=1 << 18)
    holders = [view.add_holder(b"r") for _ in range(200)]
    pairs = ((one, two) for one in range(200) for two in range(one))
    for at, (one, two) in zip(range(10_500), pairs, strict=False):
        key = random.Random(at).randbytes(16)
        for holder in (holders[one], holders[two]):
            view.store(holder, key, at % 60)
    for _ in range(20):
        while not view.sweep(1 << 16):
            pass
    assert view.horizon < 60
    assert view.evicted_total > 0
    view.check_integrity()
