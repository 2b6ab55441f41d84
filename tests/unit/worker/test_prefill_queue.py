"""The order of prompts, what a newcomer finds, and the learnt cost."""

import pytest

from shared.scheduling.queue_discipline import NUM_SIZES, DisciplineName, size_class
from shared.worker.prefill_queue import PrefillQueue, Reserved


def queue_of(
    *prompts: tuple[str, int, float], discipline: DisciplineName = "shortest_first"
) -> PrefillQueue:
    """Loaded prompts: handle, tokens, arrival; about 100 tokens take a second."""
    queue = PrefillQueue(100.0, discipline)
    for handle, num_tokens, arrived_s in prompts:
        queue.add(handle, num_tokens, num_tokens, arrived_s)
        queue.loaded(handle, num_tokens)
    return queue


@pytest.mark.parametrize("discipline", ["shortest_first", "fifo"])
def test_equal_prompts_go_in_order_of_arrival_once_their_prefix_is_loaded(
    discipline: DisciplineName,
) -> None:
    queue = PrefillQueue(100.0, discipline)
    queue.add("old", 500, 500, 0.0)
    queue.add("young", 500, 500, 0.1)
    assert queue.next(0.2) is None
    queue.loaded("young", 500)
    assert queue.next(0.2) == "young"
    queue.loaded("old", 500)
    assert queue.next(0.2) == "old"


def test_a_short_prompt_passes_a_long_one_between_two_of_its_chunks() -> None:
    queue = queue_of(("long", 2000, 0.0), ("short", 200, 1.0))
    queue.started("long")
    assert queue.next(1.0) == "short"
    queue.remove("short")
    assert queue.next(1.0) == "long"


def test_a_prompt_whose_cached_prefix_leaves_little_work_counts_as_short() -> None:
    queue = queue_of(("plain", 400, 0.0))
    queue.add("hit", 2000, 2000, 0.0)
    queue.loaded("hit", 50)
    assert queue.next(0.0) == "hit"


def test_waiting_makes_up_for_work() -> None:
    """20 s of work more, 0.1 s a second of waiting."""
    queue = queue_of(("long", 2000, 0.0))
    queue.add("short", 10, 10, 150.0)
    queue.loaded("short", 10)
    assert queue.next(150.0) == "short"
    queue.remove("short")
    queue.add("late", 10, 10, 300.0)
    queue.loaded("late", 10)
    assert queue.next(300.0) == "long"


def test_nobody_passes_one_that_would_miss_its_objective_for_it() -> None:
    for due_s, expected in ((5.0, "first"), (30.0, "second"), (None, "second")):
        queue = PrefillQueue(100.0)
        queue.add("first", 400, 400, 0.0, due_s)
        queue.loaded("first", 400)
        queue.add("second", 100, 100, 0.0)
        queue.loaded("second", 100)
        assert queue.next(0.0) == expected, due_s


def test_in_order_of_arrival_a_prompt_keeps_its_turn_until_its_last_chunk() -> None:
    queue = queue_of(("old", 512, 0.0), discipline="fifo")
    queue.started("old")
    queue.add("young", 10, 10, 1.0)
    queue.loaded("young", 10)
    queue.computed("old", 256, 256, 1.0)
    assert queue.next(2.0) == "old"
    queue.remove("old")
    assert queue.next(2.0) == "young"


def test_who_lacks_slots_is_next_to_take_any_and_those_with_slots_go_on() -> None:
    queue = queue_of(("holder", 1000, 0.0), ("large", 500, 0.0), ("small", 10, 0.0))
    queue.started("holder")
    assert queue.must_yield("large")
    queue.lacks_slots("large")
    assert queue.next(0.0) == "holder"  # not the small one, which would take more slots
    queue.computed("holder", 256, 256, 2.56)
    assert queue.next(0.0) == "large"  # tries again
    queue.lacks_slots("large")
    assert queue.next(0.0) == "holder"
    queue.remove("holder")
    assert queue.next(0.0) == "large"
    assert not queue.must_yield("large")
    queue.started("large")
    assert queue.next(0.0) == "small"


def test_a_slot_waiter_that_leaves_keeps_nobody_waiting() -> None:
    queue = queue_of(("holder", 1000, 0.0), ("large", 500, 0.0), ("small", 10, 0.0))
    queue.started("holder")
    queue.lacks_slots("large")
    queue.remove("large")
    assert queue.next(0.0) == "small"


def test_the_expected_start_counts_what_goes_before() -> None:
    queue = queue_of(("a", 500, 0.0))
    work = queue.work_s
    assert queue.expected_start_s([], 0.0) == pytest.approx(work(500, 500))
    reserved = [Reserved(100, 100)]
    both_s = work(500, 500) + work(100, 100)
    assert queue.expected_start_s(reserved, 0.0) == pytest.approx(both_s)
    shorter, longer = Reserved(200, 200), Reserved(600, 600)
    assert queue.expected_start_s(reserved, 0.0, shorter) == pytest.approx(work(100, 100))
    assert queue.expected_start_s(reserved, 0.0, longer) == pytest.approx(both_s)
    in_order = queue_of(("a", 500, 0.0), discipline="fifo")
    assert in_order.expected_start_s(reserved, 0.0, shorter) == pytest.approx(both_s)


def test_a_chunk_that_computes_is_waited_for_by_all() -> None:
    queue = queue_of(("long", 2000, 0.0))
    queue.computing("long", 256, 256, 0.0)
    chunk_s = queue.work_s(256, 256)
    small = Reserved(10, 10)
    assert queue.expected_start_s([], 1.0, small) == pytest.approx(chunk_s - 1.0)
    assert queue.expected_start_s([], 100.0, small) == 0.0


def test_the_profile_has_all_work_by_size() -> None:
    queue = queue_of(("a", 500, 0.0), ("b", 20, 0.0))
    profile = queue.profile([Reserved(500, 500)], 0.0)
    large, small = queue.work_s(500, 500), queue.work_s(20, 20)
    assert len(profile.work_s) == len(profile.prompts) == NUM_SIZES
    assert profile.work_s[size_class(large)] == pytest.approx(2 * large)
    assert profile.work_s[size_class(small)] == pytest.approx(small)
    assert (profile.prompts[size_class(large)], sum(profile.prompts)) == (2, 3)


def test_the_cost_is_learnt_from_chunks() -> None:
    queue = PrefillQueue(100.0)
    queue.add("a", 12_800, 12_800, 0.0)
    for number in range(50):
        queue.computed("a", 256 * (number + 1), 256, 0.256 * (1 + number / 50))
    assert queue.work_s(256, 256) > 1.0  # nobody is kept waiting for that
    queue.learn()
    assert queue.work_s(256, 256) == pytest.approx(0.256, rel=0.05)
    assert queue.work_s(12_800, 256) == pytest.approx(0.512, rel=0.05)
    assert queue.queued_tokens == 0


def test_a_prompt_is_queued_once() -> None:
    queue = PrefillQueue(1.0)
    queue.add("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="queued already"):
        queue.add("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="tokens_per_s"):
        PrefillQueue(0.0)
