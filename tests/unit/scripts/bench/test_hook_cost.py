import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench import hook_cost
from scripts.bench.hook_cost import HookClock, WokenLoop, cost_of, median_with_error, woken_loop
from shared.worker.grid import NUM_LAYER_GROUPS, layer_groups

NUM_GROUPS = st.integers(2, 7)
SPEED = st.floats(0.2, 5.0)


def test_the_loop_hears_of_each_layer_and_its_time_is_known() -> None:
    with woken_loop(30) as woken:
        for layer in range(30):
            woken.on_layer(layer)
    assert woken.layers == list(range(30))
    assert woken.cpu_s > 0


def test_two_clocks_call_each_hook_once() -> None:
    with woken_loop(30) as woken:
        clocks = [HookClock(woken, turn) for turn in range(2)]
        for clock in clocks:
            clock.begin()
            for layer in range(30):
                clock.on_layer(layer)
            clock.end()
        groups = sorted(woken.groups)
    assert woken.layers == groups[::2] + groups[1::2]
    for clock in clocks:
        assert len(clock.seconds) == len(groups) - 1
        assert 0 < clock.inner_s < clock.whole_s


def test_a_hook_counts_for_the_group_that_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    class SlowLoop(WokenLoop):
        def on_layer(self, layer: int) -> None:
            nonlocal now_s
            now_s += 2.0

    monkeypatch.setattr(hook_cost, "time", SimpleNamespace(perf_counter=lambda: now_s))
    loop = asyncio.new_event_loop()
    woken = SlowLoop(loop, layer_groups(12, NUM_LAYER_GROUPS))
    loop.close()
    clocks = [HookClock(woken, turn) for turn in range(2)]
    for clock in clocks:
        clock.begin()
        for layer in range(12):
            now_s += 5.0
            clock.on_layer(layer)
        now_s += 1.0
        clock.end()
    assert [clock.seconds for clock in clocks] == [[12, 10, 12, 10, 12], [10, 12, 10, 12, 10]]
    assert [clock.inner_s for clock in clocks] == [6.0, 6.0]
    assert [clock.whole_s for clock in clocks] == [67.0, 67.0]
    assert cost_of(clocks[0].seconds, clocks[1].seconds) == pytest.approx(0.2)


@given(groups=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=7), speed=SPEED)
def test_a_faster_second_run_costs_nothing(groups: list[float], speed: float) -> None:
    assert cost_of(groups, [one * speed for one in groups]) == pytest.approx(0, abs=1e-9)


@given(num_groups=NUM_GROUPS, speed=SPEED, cost=st.floats(0, 0.5))
def test_the_cost_is_found_whatever_the_speed(num_groups: int, speed: float, cost: float) -> None:
    first = [1 + cost if number % 2 == 0 else 1.0 for number in range(num_groups)]
    second = [speed * (1.0 if number % 2 == 0 else 1 + cost) for number in range(num_groups)]
    assert cost_of(first, second) == pytest.approx(cost, abs=1e-9)


@given(num_groups=st.sampled_from([3, 5, 7]), drift=st.floats(-0.2, 0.2))
def test_a_machine_that_slows_down_evenly_costs_nothing(num_groups: int, drift: float) -> None:
    second = [(1 + drift) ** number for number in range(num_groups)]
    assert cost_of([1.0] * num_groups, second) == pytest.approx(0, abs=1e-9)


def test_one_group_cannot_tell_a_cost_from_another_speed() -> None:
    assert cost_of([1.0], [2.0]) is None


def test_the_error_covers_the_truth_and_outliers_move_neither() -> None:
    source = random.Random(1)
    values = [source.gauss(1.0, 0.5) for _ in range(400)]
    middle, error = median_with_error(values)
    assert abs(middle - 1.0) < error < 0.1
    shifted, wider = median_with_error([*values, *([99.0] * 4)])
    assert shifted == pytest.approx(middle, abs=0.02)
    assert wider == pytest.approx(error, rel=0.1)
