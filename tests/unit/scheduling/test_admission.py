"""Refusals for targets that would be missed, by the three rules and by class."""

import random
from typing import Any

import pytest

from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.cost_model import CostProfile, PrefillCoefficients
from shared.scheduling.decode_forecast import DecodeForecast
from shared.scheduling.effects import AnswerPlaced, AnswerRefused
from shared.scheduling.events import BillFinished, InstanceReported
from shared.scheduling.slo import Slo, shown, shown_apart
from shared.scheduling.vocabulary import InstanceView, PredictedTimes, Refusal
from tests.support.placing import MODEL, Driven, instance, request

PROFILE = CostProfile(
    prefill=PrefillCoefficients(0.0, 1.0, 0.0),
    decode_step_s=0.03,
    decode_sequence_s=0.01,
    decode_context_s=0.0,
)


def cluster(start_s: float = 0.0, running: int = 0) -> list[InstanceView]:
    return [
        instance("prefill", "p1", "n1", expected_start_s=start_s),
        instance("decode", "d1", "n1", running=running),
    ]


def place(
    instances: list[InstanceView], asked: dict[str, Any] | None = None, **settings: Any
) -> AnswerPlaced | AnswerRefused:
    return Driven(instances, profile=PROFILE, **settings).place(request(1_024, **(asked or {})))


def test_without_targets_nothing_is_refused_for_them() -> None:
    assert isinstance(place(cluster(500.0, running=200)), AnswerPlaced)


@pytest.mark.parametrize("rule", ["baseline", "early_rejection", "predicted"])
def test_a_ttft_that_would_be_missed_is_refused_with_both_figures_and_a_time(rule: str) -> None:
    answer = place(cluster(9.0), admission=rule, slo=Slo(ttft_s=5.0))
    assert isinstance(answer, AnswerRefused)
    refusal = answer.refusal
    assert (refusal.code, refusal.is_retryable) == ("overloaded", True)
    assert refusal.predicted.ttft_s == pytest.approx(10.0)
    assert refusal.allowed.ttft_s == 5.0
    assert refusal.retry_after_s == pytest.approx(5.0)
    assert "TTFT would be 10.00 s, allowed are 5.00 s" in refusal.message
    assert isinstance(place(cluster(3.0), admission=rule, slo=Slo(ttft_s=5.0)), AnswerPlaced)


def test_a_target_of_some_milliseconds_is_told_in_figures_that_differ() -> None:
    answer = place(cluster(0.0), slo=Slo(ttft_s=0.0042))
    assert isinstance(answer, AnswerRefused)
    assert "allowed are 4.2 ms" in answer.refusal.message
    assert [shown(one) for one in (1e-6, 0.110, 0.9996, 1.0, 12.345)] == [
        "0.001 ms", "110 ms", "1.00 s", "1.00 s", "12.35 s",
    ]  # fmt: skip


def test_a_target_that_is_just_missed_is_told_in_figures_that_differ() -> None:
    assert shown_apart(1.004, 1.003) == ("1.004 s", "1.003 s")
    assert shown_apart(0.05052, 0.05051) == ("50.52 ms", "50.51 ms")
    assert shown_apart(0.110, 0.1) == ("110 ms", "100 ms")
    assert shown_apart(1.0, 1.0) == ("1.00 s", "1.00 s")


def test_a_full_decode_pool_is_refused_at_arrival_by_all_rules_but_baseline() -> None:
    slo = Slo(tbt_s=0.1)
    for rule, is_let_in in [("baseline", True), ("early_rejection", False), ("predicted", False)]:
        answer = place(cluster(running=10), admission=rule, slo=slo)
        assert isinstance(answer, AnswerPlaced) == is_let_in, rule


@pytest.mark.parametrize(
    ("rule", "judged_s"), [("baseline", 0.08), ("early_rejection", None), ("predicted", None)]
)
def test_only_baseline_leaves_something_to_decode(rule: str, judged_s: float | None) -> None:
    """By the target of the request's class, and by none when it has none."""
    driven = Driven(cluster(), profile=PROFILE, admission=rule, slo=Slo(tbt_s=0.1))
    driven.place(request(1_024, priority="low"))
    judged = {effect.role: effect.judged_tbt_s for effect in driven.reserved}
    assert judged == {"prefill": pytest.approx(judged_s), "decode": None}
    driven = Driven(cluster(), profile=PROFILE, admission=rule, slo=Slo(ttft_s=9.0))
    driven.place(request(1_024))
    assert {effect.judged_tbt_s for effect in driven.reserved} == {None}


def test_predicted_lets_in_what_finds_room_when_its_prefill_is_done() -> None:
    """Eight decode now, 5 s each; this one's prefill takes until most of them are done."""

    def answer(rule: str, start_s: float) -> AnswerPlaced | AnswerRefused:
        driven = Driven(
            cluster(), profile=PROFILE, admission=rule, slo=Slo(tbt_s=0.1), decode_time_s=5.0
        )
        driven.now_s = 1.0
        for one in cluster(start_s, running=8):
            driven.feed(InstanceReported(one))
        return driven.place(request(1_024))

    assert isinstance(answer("early_rejection", 6.0), AnswerRefused)
    assert isinstance(answer("predicted", 6.0), AnswerPlaced)
    assert isinstance(answer("predicted", 0.0), AnswerRefused)


def test_predicted_refuses_what_would_meet_those_still_in_prefill() -> None:
    driven = Driven(cluster(), profile=PROFILE, slo=Slo(tbt_s=0.1), decode_time_s=20.0)
    outcomes = []
    for _ in range(8):
        outcomes.append(isinstance(driven.place(request(1_024)), AnswerPlaced))
        for number in range(2):
            promised = sum(outcomes)
            view = cluster(running=0)[number]
            if view.role == "decode":
                view = instance("decode", "d1", "n1", queued_requests=promised)
            driven.feed(InstanceReported(view))
    assert outcomes == [True] * 7 + [False]


def test_low_is_refused_first_and_high_last() -> None:
    def is_let_in(priority: str, start_s: float) -> bool:
        asked = {"priority": priority}
        return isinstance(place(cluster(start_s), asked, slo=Slo(ttft_s=5.0)), AnswerPlaced)

    assert [is_let_in(p, 3.5) for p in ("low", "normal", "high")] == [False, True, True]
    assert [is_let_in(p, 4.5) for p in ("low", "normal", "high")] == [False, False, True]
    assert [is_let_in(p, 6.5) for p in ("low", "normal", "high")] == [False, False, False]


def test_the_strictest_of_deployment_model_and_request_holds() -> None:
    def is_let_in(asked: float | None, of_model: float | None) -> bool:
        answer = place(
            cluster(2.0),
            {"slo": Slo(ttft_s=asked)},
            slo=Slo(ttft_s=4.0),
            model_slos={MODEL: Slo(ttft_s=of_model)},
        )
        return isinstance(answer, AnswerPlaced)

    assert is_let_in(None, None)
    assert not is_let_in(2.5, None)
    assert not is_let_in(None, 2.5)
    assert not is_let_in(30.0, 2.5)


def test_an_instance_that_meets_the_target_goes_before_a_cheaper_one_that_does_not() -> None:
    """The policy here balances load alone; the target still decides."""
    instances = [
        instance("prefill", "p1", "n1", expected_start_s=6.0, queued_tokens=0),
        instance("prefill", "p2", "n2", expected_start_s=1.0, queued_tokens=9_000),
        instance("decode", "d1", "n1"),
    ]
    answer = place(instances, policy="dynamo_cost", slo=Slo(ttft_s=5.0))
    assert isinstance(answer, AnswerPlaced)
    assert answer.decision.winner.prefill.id == "p2"


def test_explain_refuses_as_place_does() -> None:
    driven = Driven(cluster(9.0), profile=PROFILE, slo=Slo(ttft_s=5.0))
    explained = driven.core.explain(request(1_024), [], 0.0)
    assert isinstance(explained, Refusal)
    assert explained.allowed.ttft_s == 5.0


def test_an_unknown_rule_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="admission: 'never' is none of baseline"):
        ConductorCore(CoreSettings(admission="never"), random.Random(0))  # type: ignore[arg-type]


def test_the_forecast_counts_who_will_have_joined_and_who_stays() -> None:
    forecast = DecodeForecast(10.0)
    assert forecast.joins(5.0, 0.0) == 1.0
    for joins_s in (1.0, 2.0, 8.0, 9.0):
        forecast.placed(joins_s, 0.0)
    assert forecast.joins(0.5, 0.0) == 0.0
    assert forecast.joins(2.0, 0.0) == pytest.approx(0.5)
    assert forecast.joins(9.0, 8.5) == pytest.approx(1.0)
    assert forecast.stays(0.0) == 1.0
    assert forecast.stays(10.0) == pytest.approx(0.25, abs=0.02)


def test_decode_times_that_were_seen_shape_the_forecast() -> None:
    """Most answers are over at once: who is in a batch is one of the few long ones, and stays."""
    forecast = DecodeForecast(5.95)
    for number in range(160):
        forecast.ended(0.1 if number % 20 else 117.0)
    forecast.placed(1.0, 0.0)
    forecast.placed(2.0, 0.0)
    forecast.placed(3.0, 0.0)
    assert forecast.stays(1.0) > 0.6
    assert forecast.joins(30.0, 0.0) < 0.1


def test_a_burst_is_not_forecast_to_end_at_once() -> None:
    """Where all are taken to last equally long a burst lets in the next when it is said to end."""
    forecast = DecodeForecast(10.0)
    for _ in range(50):
        forecast.placed(0.5, 0.0)
    shares = [forecast.stays(after_s) for after_s in (9.0, 10.0, 11.0)]
    assert shares[0] - shares[2] < 0.15


def test_the_decode_time_is_learnt_from_those_still_decoding_too() -> None:
    forecast = DecodeForecast(10.0)
    for _ in range(100):
        forecast.stayed(20, 1.0)
    assert forecast.decode_time_s > 100.0
    forecast = DecodeForecast(10.0)
    for _ in range(2_000):
        forecast.stayed(8, 0.5)
        forecast.ended()
    assert forecast.decode_time_s == pytest.approx(4.0, rel=0.02)


def test_prediction_errors_are_kept_by_component() -> None:
    driven = Driven(cluster())
    assert driven.core.prediction_errors() == {}
    for real_s in (1.0, 1.0, 2.0, 4.0):
        driven.feed(
            BillFinished(
                MODEL,
                1_024,
                0,
                real_s,
                tbt_s=0.05,
                predicted=PredictedTimes(queue_s=0.5, compute_s=1.0, tbt_s=0.05),
                real=PredictedTimes(queue_s=0.5, compute_s=real_s, tbt_s=0.05),
                ttft_s=0.5 + real_s,
            )
        )
    errors = driven.core.prediction_errors()[MODEL]
    assert errors["compute"].num_requests == 4
    assert errors["compute"].p50 == pytest.approx(0.25)
    assert errors["compute"].p90 > 0.6
    assert errors["compute"].bias > 0
    assert errors["queue"].p90 == errors["tbt"].p90 == 0.0
    assert "load" not in errors
