"""Order at chunk boundaries: who goes first, who ages, and whom nobody may overtake."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.scheduling.queue_discipline import (
    NUM_SIZES,
    Fifo,
    QueueDiscipline,
    ShortestFirst,
    Waiting,
    make_discipline,
    size_class,
)

CHUNK_S = 0.5


def run(
    discipline: QueueDiscipline, jobs: list[tuple[float, float, float | None]]
) -> dict[str, float]:
    """End of each job (arrival, work, due), chunk by chunk."""
    coming = sorted(
        (Waiting(f"r{i}", work, at, due) for i, (at, work, due) in enumerate(jobs)),
        key=lambda one: one.arrived_s,
    )
    queue: list[Waiting] = []
    ends: dict[str, float] = {}
    now_s = 0.0
    while coming or queue:
        if not queue and coming[0].arrived_s > now_s:
            now_s = coming[0].arrived_s
        while coming and coming[0].arrived_s <= now_s:
            queue.append(coming.pop(0))
        chosen = discipline.choose(queue, now_s, CHUNK_S)
        assert chosen is not None
        chosen.has_started = True
        chunk_s = min(CHUNK_S, chosen.remaining_s)
        now_s += chunk_s
        chosen.remaining_s -= chunk_s
        if chosen.remaining_s <= 1e-9:
            queue.remove(chosen)
            ends[chosen.handle] = now_s
    return ends


def test_fifo_goes_by_arrival_and_never_leaves_one_that_has_started() -> None:
    assert run(Fifo(), [(0, 4, None), (0.1, 1, None)]) == {"r0": 4, "r1": 5}
    late = [Waiting("a", 1, 0, is_loaded=False), Waiting("b", 1, 1, has_started=True)]
    assert Fifo().choose(late, 2, CHUNK_S) is late[1]
    late[0].is_loaded = True
    assert Fifo().choose(late, 2, CHUNK_S) is late[1]


def test_a_short_prompt_overtakes_a_long_one_at_the_next_chunk() -> None:
    ends = run(ShortestFirst(ageing=0.0), [(0, 4, None), (0.1, 1, None)])
    assert ends == pytest.approx({"r1": 1.5, "r0": 5})


def test_a_long_prompt_ages_past_a_stream_of_short_ones() -> None:
    stream: list[tuple[float, float, float | None]] = [(0, 3, None)]
    stream += [(0.9 * i, 1.0, None) for i in range(60)]
    starved = run(ShortestFirst(ageing=0.0), list(stream))["r0"]
    aged = run(ShortestFirst(ageing=0.2), list(stream))["r0"]
    assert starved > 50
    assert aged < 30


def test_one_whose_objective_would_be_missed_is_not_overtaken() -> None:
    ends = run(ShortestFirst(ageing=0.0), [(0, 4, 4.2), (0.1, 1, None)])
    assert ends["r0"] <= 4.2


def test_one_that_is_late_anyway_holds_nobody_up() -> None:
    ends = run(ShortestFirst(ageing=0.0), [(0, 4, 3.0), (0.1, 1, None)])
    assert ends["r1"] == pytest.approx(1.5)


def test_what_is_not_loaded_waits_and_the_instance_does_not_idle() -> None:
    queue = [Waiting("a", 1, 0, due_s=1.2, is_loaded=False), Waiting("b", 2, 0)]
    assert ShortestFirst().choose(queue, 0, CHUNK_S) is queue[1]
    queue[1].is_loaded = False
    assert ShortestFirst().choose(queue, 0, CHUNK_S) is None


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(0.1, 5), st.one_of(st.none(), st.floats(0.2, 20))),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_nobody_misses_an_objective_that_fifo_would_have_met(
    jobs: list[tuple[float, float, float | None]], ageing: float
) -> None:
    due = [(at, work, None if slack is None else at + slack) for at, work, slack in jobs]
    in_order = run(Fifo(), list(due))
    ends = run(ShortestFirst(ageing), list(due))
    for index, (_, _, due_s) in enumerate(due):
        if due_s is not None and in_order[f"r{index}"] <= due_s - 1e-6:
            assert ends[f"r{index}"] <= due_s + 1e-6


def test_the_profile_sums_by_the_size_that_counts() -> None:
    queue = [Waiting("a", 1.0, 0.0), Waiting("b", 5.0, 10.0)]
    aged = ShortestFirst(ageing=0.05).profile(queue, 10.0)
    assert aged.work_s[size_class(0.5)] == 1.0
    assert aged.work_s[size_class(5.0)] == 5.0
    assert sum(aged.prompts) == 2
    assert len(aged.work_s) == len(aged.prompts) == NUM_SIZES
    queue[1].in_chunk_s = 0.4
    computing = ShortestFirst(ageing=0.05).profile(queue, 10.0)
    assert computing.work_s[0] == 0.4
    assert computing.work_s[size_class(5.0)] == pytest.approx(4.6)
    assert Fifo().profile(queue, 10.0).work_s[0] == 6.0


def test_mean_time_is_below_fifo_on_a_loaded_instance() -> None:
    rng = random.Random(1)
    jobs: list[tuple[float, float, float | None]] = [
        (i * 1.1, rng.choice([0.2, 0.2, 0.5, 3.0]), None) for i in range(200)
    ]

    def mean(discipline: QueueDiscipline) -> float:
        ends = run(discipline, list(jobs))
        return sum(ends[f"r{i}"] - at for i, (at, _, _) in enumerate(jobs)) / len(jobs)

    assert mean(make_discipline("shortest_first")) < 0.8 * mean(make_discipline("fifo"))


def test_a_negative_ageing_is_refused() -> None:
    with pytest.raises(ValueError, match="ageing"):
        ShortestFirst(-1)
