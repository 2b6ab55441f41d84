"""Figures of requests over time: who counts, whose targets hold, where tokens came from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.common import Targets
from shared.overview.requests import RequestLog, Seen, row_of, tokens_by_source
from shared.overview.series import SPAN_S, STEP_S, SUMMARY_S, figures_of, percentile, series_of
from shared.overview.series import summary_of as summary
from tests.support.ended import MODEL, bill, finished, refused


def seen(request: object, ended_s: float = 1_000.0) -> Seen:
    return Seen("g.i.1", "g", ended_s, request)  # type: ignore[arg-type]


def test_tokens_are_told_by_source_and_disk_is_a_part_of_local() -> None:
    reuse = bill(local_tokens=40, remote_tokens=20, disk_tokens=10).reuse
    assert tokens_by_source(reuse) == {"none": 40, "local": 30, "remote": 20, "disk": 10}


def test_each_request_is_held_to_its_own_and_the_deployments_targets() -> None:
    slos = {MODEL: Targets(allowed_ttft_s=0.3)}
    quick, slow = seen(finished(ttft_s=0.2)), seen(finished(ttft_s=0.4))
    strict = seen(finished(ttft_s=0.2, ttft_slo_ms=100))
    assert [row_of(one, slos)["is_met"] for one in (quick, slow, strict)] == [True, False, False]
    assert row_of(quick, {})["is_met"] is None
    figures = figures_of([quick, slow, strict, seen(refused())], slos)
    assert figures["attainment"] == pytest.approx(1 / 3)
    assert figures["effective_capacity"] == pytest.approx(1 / 4)


def test_what_a_client_gave_up_counts_for_nobody() -> None:
    slos = {MODEL: Targets(allowed_ttft_s=0.3)}
    left = seen(refused(ending="cancelled", error=None))
    figures = figures_of([seen(finished()), left], slos)
    assert (figures["asked"], figures["effective_capacity"]) == (1, 1.0)
    assert row_of(left, slos)["is_met"] is None


def test_without_targets_there_is_neither_attainment_nor_capacity() -> None:
    figures = figures_of([seen(finished()), seen(refused())], {})
    assert (figures["attainment"], figures["effective_capacity"]) == (None, None)


def test_steps_hold_what_ended_in_them_and_only_of_the_span() -> None:
    now_s = 10_000.0
    times = [now_s - SPAN_S - 1, now_s - 3 * STEP_S, now_s - 3 * STEP_S + 1, now_s - 1]
    steps = series_of([seen(finished(), at) for at in times], {}, now_s)["steps"]
    assert [step["endings"]["finished"] for step in steps] == [2, 1]
    assert all(step["start_s"] % STEP_S == 0 for step in steps)


def test_reasons_are_of_the_last_minutes_the_most_frequent_first() -> None:
    now_s = 10_000.0
    requests = [
        seen(refused(), now_s - SUMMARY_S - 1),
        seen(refused(), now_s - 20),
        seen(refused(), now_s - 10),
        seen(refused(ending="failed"), now_s - 5),
        seen(finished(), now_s - 5),
    ]
    reasons = summary(requests, {}, now_s)["reasons"]
    assert [(one["ending"], one["count"]) for one in reasons] == [("refused", 2), ("failed", 1)]
    assert reasons[0]["last_s"] == now_s - 10


def test_a_single_token_has_no_time_between_tokens() -> None:
    one = finished()
    assert one.bill is not None
    single = one.model_copy(update={"bill": one.bill.model_copy(update={"output_tokens": 1})})
    assert figures_of([seen(single)], {})["tbt_s"] == {"p50": None, "p90": None}


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_with_so_many_at_or_below(
    values: list[int], percent: int
) -> None:
    found = percentile(values, percent)
    assert found in values
    needed = math.ceil(len(values) * percent / 100)
    assert sum(one <= found for one in values) >= needed
    assert sum(one < found for one in values) < needed


def test_the_log_keeps_the_last_and_takes_each_once() -> None:
    log = RequestLog(max_kept=3)
    for number in (1, 2, 2, 3, 4):
        log.add("g", "i", 0.0, finished(number))
    assert [one.request.number for one in log] == [2, 3, 4]
    log.add("g", "other", 0.0, finished(4))
    assert len(log) == 3
    assert log.get("g.other.4") is not None
