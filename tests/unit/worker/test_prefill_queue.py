"""The order of prompts and the learnt speed."""

import pytest

from shared.worker.prefill_queue import Discipline, PrefillQueue


def queue_of(*prompts: tuple[str, int, float], discipline: Discipline = "fair") -> PrefillQueue:
    """Loaded prompts: handle, tokens, arrival; 100 tokens take a second."""
    queue = PrefillQueue(100.0, discipline)
    for handle, num_tokens, arrived_s in prompts:
        queue.add(handle, num_tokens, arrived_s)
        queue.loaded(handle, num_tokens)
    return queue


@pytest.mark.parametrize("discipline", ["fair", "fifo"])
def test_equal_prompts_go_in_order_of_arrival_once_their_prefix_is_loaded(
    discipline: Discipline,
) -> None:
    queue = PrefillQueue(100.0, discipline)
    queue.add("old", 500, 0.0)
    queue.add("young", 500, 0.1)
    assert queue.next() is None
    queue.loaded("young", 500)
    assert queue.next() == "young"
    queue.loaded("old", 500)
    assert queue.next() == "old"


def test_a_short_prompt_passes_a_long_one_between_two_of_its_chunks() -> None:
    queue = queue_of(("long", 2000, 0.0), ("short", 200, 1.0))
    queue.started("long")
    assert queue.next() == "short"
    queue.remove("short")
    assert queue.next() == "long"


def test_a_long_prompt_is_not_passed_by_what_comes_after_its_own_time() -> None:
    queue = queue_of(("long", 2000, 0.0), ("before", 100, 18.9), ("after", 100, 19.1))
    assert queue.next() == "before"
    queue.remove("before")
    assert queue.next() == "long"


def test_a_long_prompt_that_is_half_done_is_passed_all_the_same() -> None:
    queue = queue_of(("long", 2000, 0.0))
    queue.started("long")
    queue.computed("long", 1024, 10.24)
    queue.add("short", 10, 10.0)
    queue.loaded("short", 10)
    assert queue.next() == "short"


def test_in_order_of_arrival_a_prompt_keeps_its_turn_until_its_last_chunk() -> None:
    queue = queue_of(("old", 512, 0.0), discipline="fifo")
    queue.started("old")
    queue.add("young", 10, 1.0)
    queue.loaded("young", 10)
    queue.computed("old", 256, 1.0)
    assert queue.next() == "old"
    queue.remove("old")
    assert queue.next() == "young"


def test_who_lacks_slots_is_next_to_take_any_and_those_with_slots_go_on() -> None:
    queue = queue_of(("holder", 1000, 0.0), ("large", 500, 0.0), ("small", 10, 0.0))
    queue.started("holder")
    assert queue.must_yield("large")
    queue.lacks_slots("large")
    assert queue.next() == "holder"  # not the small one, which would take more slots
    queue.computed("holder", 256, 2.56)
    assert queue.next() == "large"  # tries again
    queue.lacks_slots("large")
    assert queue.next() == "holder"
    queue.remove("holder")
    assert queue.next() == "large"
    assert not queue.must_yield("large")
    queue.started("large")
    assert queue.next() == "small"


def test_a_slot_waiter_that_leaves_keeps_nobody_waiting() -> None:
    queue = queue_of(("holder", 1000, 0.0), ("large", 500, 0.0), ("small", 10, 0.0))
    queue.started("holder")
    queue.lacks_slots("large")
    queue.remove("large")
    assert queue.next() == "small"


def test_the_expected_start_counts_what_goes_before() -> None:
    queue = PrefillQueue(100.0)
    queue.add("a", 500, 0.0)
    assert queue.expected_start_s(reserved_tokens=100) == pytest.approx(6.0)
    queue.loaded("a", 200)  # a hit of 300
    assert queue.expected_start_s(0) == pytest.approx(2.0)
    assert queue.expected_start_s(0, num_tokens=100, now_s=0.5) == 0.0  # it would pass
    assert queue.expected_start_s(0, num_tokens=300, now_s=0.5) == pytest.approx(2.0)
    in_order = PrefillQueue(100.0, "fifo")
    in_order.add("a", 500, 0.0)
    assert in_order.expected_start_s(0, num_tokens=1, now_s=0.5) == pytest.approx(5.0)


def test_the_speed_is_learnt_from_chunks() -> None:
    queue = PrefillQueue(100.0)
    queue.add("a", 25_600, 0.0)
    for _ in range(50):
        queue.computed("a", 256, 0.256)
    assert queue.tokens_per_s == pytest.approx(1000.0, rel=0.01)
    assert queue.queued_tokens == 25_600 - 50 * 256


def test_a_prompt_is_queued_once() -> None:
    queue = PrefillQueue(1.0)
    queue.add("a", 1, 0.0)
    with pytest.raises(ValueError, match="queued already"):
        queue.add("a", 1, 0.0)
    with pytest.raises(ValueError, match="tokens_per_s"):
        PrefillQueue(0.0)
