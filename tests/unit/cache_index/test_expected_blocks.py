"""Blocks that will be there: found while they are on the way, and not a moment longer."""

import pytest

from services.cache_index.expected_blocks import ExpectedBlocks
from shared.kv.block_keys import num_common
from shared.messages.common import InstanceRef, RequestRef
from shared.messages.index import Expected

ROOT = b"r" * 16
CHAIN = b"".join(bytes([index]) * 16 for index in range(1, 21))


def message(
    handle: str = "a",
    instance: str = "p1",
    incarnation: str = "i",
    chain: bytes = CHAIN[:160],
    done: int = 0,
    is_over: bool = False,
) -> Expected:
    return Expected(
        ref=RequestRef(request_id=handle, gateway="g", gateway_incarnation="g"),
        instance=InstanceRef(id=instance, incarnation=incarnation, node="n1"),
        root=ROOT, chain=chain, done_blocks=done,
        start_ms=1_000, eta_ms=11_000, ttl_ms=12_000, is_over=is_over,
    )  # fmt: skip


def depths(expected: ExpectedBlocks, chain: bytes = CHAIN, now_s: float = 0.0) -> dict[str, int]:
    return {one.instance.id: one.num_blocks for one in expected.match(ROOT, chain, now_s)}


def test_the_common_prefix_is_found_with_the_time_that_it_takes() -> None:
    expected = ExpectedBlocks()
    expected.hear(message(), 0.0)
    (all_of_it,) = expected.match(ROOT, CHAIN, 0.0)
    assert (all_of_it.num_blocks, all_of_it.eta_s) == (10, pytest.approx(11.0))
    (half,) = expected.match(ROOT, CHAIN[:80] + bytes(160), 2.0)
    assert (half.num_blocks, half.eta_s) == (5, pytest.approx(4.0))
    assert expected.match(ROOT, bytes(160), 0.0) == []
    assert expected.match(b"other" * 4, CHAIN, 0.0) == []


def test_of_several_prompts_of_an_instance_the_longest_counts() -> None:
    expected = ExpectedBlocks()
    for handle, count in (("a", 4), ("b", 9), ("c", 6)):
        expected.hear(message(handle, chain=CHAIN[: 16 * count]), 0.0)
    expected.hear(message("d", instance="p2", chain=CHAIN[:32]), 0.0)
    assert depths(expected) == {"p1": 9, "p2": 2}


def test_what_is_done_or_over_or_late_is_expected_no_more() -> None:
    expected = ExpectedBlocks()
    expected.hear(message(done=6), 0.0)
    assert depths(expected, CHAIN[:96]) == {}
    assert depths(expected) == {"p1": 10}
    assert depths(expected, now_s=12.0) == {}
    assert len(expected) == 0
    expected.hear(message(), 0.0)
    expected.hear(message(is_over=True), 1.0)
    expected.hear(message("b", done=10), 1.0)
    assert len(expected) == 0


def test_an_instance_or_node_that_starts_anew_brings_nothing_of_what_it_promised() -> None:
    expected = ExpectedBlocks()
    expected.hear(message("a"), 0.0)
    expected.hear(message("b"), 0.0)
    expected.hear(message("a", incarnation="j", chain=CHAIN[:32]), 0.0)
    assert depths(expected) == {"p1": 2}
    expected.drop_node("n1")
    assert depths(expected) == {}


def test_it_is_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cache_index.expected_blocks.MAX_ENTRIES", 10)
    expected = ExpectedBlocks()
    for number in range(100):
        expected.hear(message(str(number), instance=f"p{number}"), 0.0)
    assert set(depths(expected)) == {f"p{number}" for number in range(90, 100)}
    expected.expire(12.0)
    assert len(expected) == 0
    assert not expected._by_start


def test_num_common_counts_whole_keys_that_agree() -> None:
    for count in range(21):
        other = CHAIN[: 16 * count] + bytes(16 * 5)
        assert num_common(CHAIN, other) == count
    assert num_common(b"", CHAIN) == 0
