from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.replay.measures import measures_of
from scripts.replay.plan import PlanSettings, make_plan, spread_ticks
from scripts.replay.player import Played, Run
from shared.scheduling.slo import Slo
from shared.simulator.trace import TraceRequest

FIRST = TraceRequest(10.0, 1_000, 40, (1, 2))
SECOND = TraceRequest(14.0, 1_500, 8, (1, 2, 3))


def test_the_same_ids_give_the_same_tokens_and_others_do_not() -> None:
    one, other = make_plan([FIRST, SECOND], PlanSettings(scale=4)).requests
    assert one.prompt() == one.prompt()
    assert other.prompt()[:250] == one.prompt()
    assert len(other.prompt()) == other.num_tokens == 375
    salted = make_plan([FIRST], PlanSettings(scale=4, salt="b")).requests[0]
    assert salted.prompt() != one.prompt()


def test_lengths_and_times_are_scaled() -> None:
    one, other = make_plan([FIRST, SECOND], PlanSettings(scale=4, speed=2)).requests
    assert (one.at_s, other.at_s) == (0.0, 2.0)
    assert (one.num_tokens, one.output_tokens, other.output_tokens) == (250, 10, 2)


def test_a_prompt_longer_than_the_context_is_cut_and_counted() -> None:
    plan = make_plan([FIRST, SECOND], PlanSettings(context_tokens=1_200))
    assert plan.num_cut == 1
    assert plan.requests[1].num_tokens + plan.requests[1].output_tokens < 1_200


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40))
def test_requests_are_spread_over_their_tick_in_order_and_always_alike(ticks: list[int]) -> None:
    arrivals_s = [3.0 * tick for tick in sorted(ticks)]
    spread = spread_ticks(arrivals_s)
    assert spread == sorted(spread) == spread_ticks(arrivals_s)
    gaps_s = [after - before for before, after in pairwise(sorted(set(arrivals_s)))]
    tick_s = min(gaps_s, default=0.0)
    for before, after in zip(arrivals_s, spread, strict=True):
        assert before <= after <= before + tick_s


def test_a_plan_spreads_only_when_asked() -> None:
    together = [FIRST, FIRST, SECOND]
    assert [one.at_s for one in make_plan(together, PlanSettings()).requests] == [0, 0, 4]
    spread = make_plan(together, PlanSettings(is_spread=True, speed=2)).requests
    assert 0 < spread[0].at_s < spread[1].at_s < 2 <= spread[2].at_s <= 4


def played(times_s: list[float], status: int = 200, **fields: object) -> Played:
    planned = make_plan([FIRST], PlanSettings()).requests[0]
    return Played(planned, sent_s=1.0, token_times_s=times_s, status=status, **fields)  # type: ignore[arg-type]


def test_measures_count_what_was_refused_and_what_met_its_targets() -> None:
    bill = {
        "cached_from": "local", "cached_tokens": 512, "fetched_bytes": 0, "streamed_bytes": 7,
        "bill": {
            "predicted": dict.fromkeys(("queue_s", "load_s", "compute_s", "handoff_s"), 0.0)
            | {"compute_s": 1.0, "tbt_s": 0.1},
            "real": dict.fromkeys(("queue_s", "load_s", "compute_s", "handoff_s"), 0.0)
            | {"compute_s": 0.8, "tbt_s": 0.1, "ttft_s": 0.8},
        },
    }  # fmt: skip
    run = Run(
        [
            played([1.5, 1.6, 1.7], bill=bill),
            played([9.0, 9.1], bill=bill),
            played([], status=429, error="full"),
            played([], status=500, error="broken"),
        ]
    )
    found = measures_of("run", run, Slo(1.0, 0.2))
    assert (found["served"], found["refused"], found["failed"]) == (2, 1, {"broken": 1})
    assert found["effective"] == 0.25
    assert found["mean_ttft_s"] == pytest.approx(4.25)
    assert found["cached_by_source"] == {"local": 1_024}
    assert found["prediction_error"]["compute"]["p50"] == pytest.approx(0.25)
    assert not found["is_client_the_bottleneck"]


def test_a_late_client_says_so() -> None:
    run = Run([played([1.5], lag_s=0.3)])
    assert measures_of("run", run, Slo())["is_client_the_bottleneck"]
