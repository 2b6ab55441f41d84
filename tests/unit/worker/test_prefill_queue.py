"""The order of prompts and the learnt speed."""

import pytest

from shared.worker.prefill_queue import PrefillQueue


def test_prompts_go_in_order_of_arrival_once_their_prefix_is_loaded() -> None:
    queue = PrefillQueue(100.0)
    queue.add("old", 500)
    queue.add("young", 500)
    assert queue.next() is None
    queue.loaded("young", 500)
    assert queue.next() == "young"
    queue.loaded("old", 500)
    assert queue.next() == "old"


def test_a_prompt_keeps_its_turn_until_its_last_chunk() -> None:
    queue = PrefillQueue(100.0)
    queue.add("old", 512)
    queue.add("young", 512)
    queue.loaded("young", 512)
    queue.started("young")
    queue.loaded("old", 512)
    assert queue.next() == "young"
    queue.computed("young", 256, 1.0)
    assert queue.next() == "young"
    queue.remove("young")
    assert queue.next() == "old"


def test_the_expected_start_counts_what_is_queued_and_reserved() -> None:
    queue = PrefillQueue(100.0)
    queue.add("a", 500)
    assert queue.expected_start_s(reserved_tokens=100) == pytest.approx(6.0)
    queue.loaded("a", 200)  # a hit of 300
    assert queue.expected_start_s(0) == pytest.approx(2.0)


def test_the_speed_is_learnt_from_chunks() -> None:
    queue = PrefillQueue(100.0)
    queue.add("a", 25_600)
    for _ in range(50):
        queue.computed("a", 256, 0.256)
    assert queue.tokens_per_s == pytest.approx(1000.0, rel=0.01)
    assert queue.queued_tokens == 25_600 - 50 * 256


def test_a_prompt_is_queued_once() -> None:
    queue = PrefillQueue(1.0)
    queue.add("a", 1)
    with pytest.raises(ValueError, match="queued already"):
        queue.add("a", 1)
    with pytest.raises(ValueError, match="tokens_per_s"):
        PrefillQueue(0.0)
