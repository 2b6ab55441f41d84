"""The decision machine: pairs, refusals, retries, and who is never chosen."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.cost_model import CostProfile
from shared.scheduling.effects import AnswerPlaced, AnswerRefused, SendRelease, SendReserve
from shared.scheduling.events import (
    AskedElsewhere,
    InstanceLost,
    InstanceReported,
    PlaceAsked,
    ReserveFailed,
    TimerFired,
)
from shared.scheduling.slo import Slo
from shared.scheduling.vocabulary import Candidate, InstanceView, PlacementDecision, Refusal
from tests.support.placing import GRID_TOKENS, Driven, instance, match, request


def two_nodes() -> list[InstanceView]:
    return [instance("prefill", f"p{n}", f"n{n}") for n in (1, 2)] + [
        instance("decode", f"d{n}", f"n{n}") for n in (1, 2)
    ]


def refusal(answer: AnswerPlaced | AnswerRefused) -> Refusal:
    assert isinstance(answer, AnswerRefused), answer
    return answer.refusal


def decision(answer: AnswerPlaced | AnswerRefused) -> PlacementDecision:
    assert isinstance(answer, AnswerPlaced), answer
    return answer.decision


def test_a_placement_reserves_at_both_at_once_and_answers_when_both_accepted() -> None:
    driven = Driven(two_nodes())
    effects = driven.feed(PlaceAsked(99, request()))
    assert [effect.role for effect in effects if isinstance(effect, SendReserve)] == [
        "prefill",
        "decode",
    ]
    prefill, decode = effects
    assert isinstance(prefill, SendReserve)
    assert isinstance(decode, SendReserve)
    assert driven.feed(driven.answer(decode, is_accepted=True)) == []
    (placed,) = driven.feed(driven.answer(prefill, is_accepted=True, start_s=0.7))
    assert isinstance(placed, AnswerPlaced)
    assert placed.decision.predicted.queue_s == 0.7
    assert len(placed.decision.losers) == 1
    assert placed.decision.losers[0].reason.endswith(": one of equals was taken at random")


def test_a_loser_says_why_it_lost_and_has_a_whole_bill() -> None:
    def loser_of(second: dict[str, Any], **settings: Any) -> Candidate:
        cluster = [
            instance("prefill", "p0", "n0", expected_start_s=1.0),
            instance("prefill", "p1", "n1", **second),
            instance("decode", "d", "n0"),
        ]
        profile = CostProfile(request_s=0.25)
        answer = Driven(cluster, profile=profile, **settings).place(request())
        (loser,) = decision(answer).losers
        return loser

    dearer = loser_of({"expected_start_s": 2.0})
    assert re.fullmatch(r"cost 2\.\d+ s, the winner's 1\.\d+ s", dearer.reason)
    assert dearer.predicted.overhead_s == 0.25
    late = loser_of({"expected_start_s": 9.0}, slo=Slo(ttft_s=5.0))
    assert re.fullmatch(r"TTFT would be 9\.\d+ s, allowed are 5\.00 s", late.reason)
    idle = loser_of({}, policy="round_robin")
    assert "less than the winner's, but the policy does not go by cost" in idle.reason


def test_a_candidate_that_is_lost_while_others_answer_is_still_named_as_a_loser() -> None:
    cluster = [instance("prefill", f"p{n}", f"n{n}", expected_start_s=n) for n in range(3)]
    driven = Driven([*cluster, instance("decode", "d", "n9")])
    reserves = driven.feed(PlaceAsked(99, request()))
    driven.feed(InstanceLost("prefill", ("p1", "p1-1")))
    for effect in reserves:
        assert isinstance(effect, SendReserve)
        answers = driven.feed(driven.answer(effect, is_accepted=True))
    (placed,) = answers
    assert isinstance(placed, AnswerPlaced)
    assert [loser.prefill.id for loser in placed.decision.losers] == ["p1", "p2"]


def test_the_longest_match_wins_and_another_node_fetches_it_when_that_one_is_busy() -> None:
    local = decision(Driven(two_nodes()).place(request(), match("n2", 60)))
    assert local.winner.prefill.id == "p2"
    assert local.winner.source is None
    instances = two_nodes()
    instances[1] = instance("prefill", "p2", "n2", expected_start_s=30.0)
    fetched = decision(Driven(instances).place(request(), match("n2", 60)))
    assert fetched.winner.prefill.id == "p1"
    assert fetched.winner.source is not None
    assert fetched.winner.source.node == "n2"
    assert fetched.winner.cached_tokens == 960


def test_a_full_hit_computes_the_last_chunk_again() -> None:
    placed = decision(Driven(two_nodes()).place(request(1_024), match("n1", 64)))
    assert placed.winner.cached_tokens == 1_024 - GRID_TOKENS


def test_what_an_old_incarnation_of_a_node_held_is_no_local_hit() -> None:
    instances = [
        instance("prefill", "p1", "n1", node_incarnation="n1-2"),
        instance("decode", "d1", "n1"),
    ]
    placed = decision(Driven(instances).place(request(), match("n1", 60)))
    assert placed.winner.local_blocks == 0
    assert placed.winner.cached_tokens == 0


def test_cache_off_uses_no_match() -> None:
    placed = decision(Driven(two_nodes()).place(request(use_cache=False), match("n1", 60)))
    assert placed.winner.cached_tokens == 0
    assert placed.decode_source is None


def test_an_answer_that_ends_with_the_prefill_is_placed_without_decode() -> None:
    driven = Driven([instance("prefill", "p1", "n1"), instance("prefill", "p2", "n2")])
    placed = decision(driven.place(request(needs_decode=False), match("n2", 60)))
    assert (placed.winner.prefill.id, placed.decode, placed.decode_source) == ("p2", None, None)
    assert (placed.predicted.handoff_s, placed.predicted.tbt_s) == (0.0, 0.0)
    assert [effect.role for effect in driven.reserved] == ["prefill"]
    explained = driven.core.explain(request(needs_decode=False), (), 0.0)
    assert isinstance(explained, PlacementDecision)
    assert explained.decode is None
    # With more tokens there is nobody to decode them.
    assert refusal(driven.place(request())).code == "no_instance"


def test_a_prefill_alone_that_refuses_is_replaced_until_nobody_is_left() -> None:
    driven = Driven(two_nodes(), accepts=lambda effect: len(driven.reserved) > 1)
    assert decision(driven.place(request(needs_decode=False))).decode is None
    assert [effect.role for effect in driven.reserved] == ["prefill", "prefill"]
    nobody = Driven(two_nodes(), accepts=lambda _: False)
    assert refusal(nobody.place(request(needs_decode=False))).code == "overloaded"
    assert nobody.released == []


def test_where_decode_is_matters_to_those_only_that_need_one() -> None:
    """A prefill beside a decode hands over in place, which is worth a short queue."""
    instances = [
        instance("prefill", "p1", "n1", expected_start_s=0.01),
        instance("prefill", "p2", "n2"),
        instance("decode", "d1", "n1"),
    ]
    slow = CostProfile(transfer_bytes_per_s=1e6)
    with_tokens = decision(Driven(instances, profile=slow).place(request()))
    assert with_tokens.winner.prefill.id == "p1"
    without = decision(Driven(instances, profile=slow).place(request(needs_decode=False)))
    assert without.winner.prefill.id == "p2"


def test_a_prompt_alone_may_fill_the_context() -> None:
    instances = [instance("prefill", "p1", "n1", context_tokens=1_000)]
    assert (
        decision(Driven(instances).place(request(1_000, max_tokens=0, needs_decode=False))).decode
        is None
    )
    too_long = refusal(Driven(two_nodes()).place(request(8_192, max_tokens=1)))
    assert too_long.code == "context_exceeded"


def test_a_refused_side_is_replaced_and_the_other_promise_is_kept() -> None:
    refused: set[str] = set()

    def accepts(effect: SendReserve) -> bool:
        if effect.role == "prefill" and not refused:
            refused.add(effect.instance[0])
            return False
        return True

    driven = Driven(two_nodes(), accepts=accepts)
    placed = decision(driven.place(request()))
    assert placed.winner.prefill.id not in refused
    assert [effect.role for effect in driven.reserved] == ["prefill", "decode", "prefill"]
    assert driven.released == []


def test_when_all_of_a_role_refuse_the_twin_is_released_and_the_answer_says_when_to_retry() -> None:
    driven = Driven(two_nodes(), accepts=lambda effect: effect.role == "prefill")
    answer = refusal(driven.place(request()))
    assert answer.code == "overloaded"
    assert answer.is_retryable
    assert answer.retry_after_s
    assert [effect.role for effect in driven.released] == ["prefill"]


def test_an_instance_that_is_gone_is_not_asked_again() -> None:
    driven = Driven(two_nodes())
    first = driven.feed(PlaceAsked(99, request()))[0]
    assert isinstance(first, SendReserve)
    (second,) = driven.feed(ReserveFailed(99, "prefill", first.instance, is_gone=True))
    assert isinstance(second, SendReserve)
    assert second.instance != first.instance
    for _ in range(4):
        assert decision(driven.place(request())).winner.prefill.key == second.instance


def test_a_silent_instance_is_released_and_not_chosen_until_it_reports() -> None:
    driven = Driven(two_nodes())
    first = driven.feed(PlaceAsked(99, request()))[0]
    assert isinstance(first, SendReserve)
    release, second = driven.feed(ReserveFailed(99, "prefill", first.instance, is_gone=False))
    assert isinstance(release, SendRelease)
    assert release.instance == first.instance
    assert isinstance(second, SendReserve)
    silent = first.instance[0]
    chosen = {decision(driven.place(request())).winner.prefill.id for _ in range(4)}
    assert silent not in chosen
    driven.feed(InstanceReported(instance("prefill", silent, f"n{silent[1:]}")))
    chosen = {decision(driven.place(request())).winner.prefill.id for _ in range(4)}
    assert silent in chosen


def test_a_placement_nobody_answers_is_refused_at_its_deadline_and_late_promises_go_back() -> None:
    driven = Driven(two_nodes())
    asked = driven.feed(PlaceAsked(99, request()))
    deadline_s = driven.core.next_deadline_s()
    assert deadline_s == pytest.approx(1.0)
    driven.now_s = 1.0
    effects = driven.feed(TimerFired())
    assert [type(effect) for effect in effects] == [SendRelease, SendRelease, AnswerRefused]
    assert isinstance(asked[0], SendReserve)
    (late,) = driven.feed(driven.answer(asked[0], is_accepted=True))
    assert isinstance(late, SendRelease)


def test_the_number_of_asks_is_bounded() -> None:
    instances = [instance("prefill", f"p{n}", f"n{n}") for n in range(20)]
    instances.append(instance("decode", "d", "n0"))
    driven = Driven(instances, accepts=lambda effect: effect.role == "decode", max_asks=5)
    assert refusal(driven.place(request())).code == "overloaded"
    assert len(driven.reserved) == 5


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"model": "other"}, "unknown_model", "model"),
        ({"prefill": "p9"}, "unknown_instance", "prefill"),
        ({"decode": "p1"}, "unknown_instance", "decode"),
        ({"policy": "best"}, "bad_request", "policy"),
        ({"num_tokens": 9_000}, "context_exceeded", "num_tokens"),
        ({"exclude": ("p1-1", "p2-1")}, "no_instance", None),
        ({"prefill": "p1", "exclude": ("p1-1",)}, "no_instance", "prefill"),
    ],
)
def test_a_request_that_cannot_be_placed_is_refused_with_its_reason(
    changes: dict[str, object], code: str, field: str | None
) -> None:
    answer = refusal(Driven(two_nodes()).place(request(**changes)))
    assert (answer.code, answer.field) == (code, field)
    assert answer.is_retryable == (code == "no_instance")


def test_insisted_instances_are_taken() -> None:
    for prefill, decode in (("p1", "d2"), ("p2", "d1")):
        placed = decision(Driven(two_nodes()).place(request(prefill=prefill, decode=decode)))
        assert (placed.winner.prefill.id, placed.decode.id) == (prefill, decode)


def test_without_any_instance_the_refusal_says_to_come_back() -> None:
    answer = refusal(Driven([]).place(request()))
    assert answer.code == "no_instance"
    assert answer.is_retryable
    lonely = Driven([instance("prefill", "p1", "n1")])
    assert refusal(lonely.place(request())).message.startswith("no decode instance of m is ready")
    assert lonely.reserved == []


def test_a_model_that_was_served_before_is_not_unknown() -> None:
    driven = Driven(two_nodes())
    for one in two_nodes():
        driven.feed(InstanceLost(one.role, one.key))
    assert refusal(driven.place(request())).code == "no_instance"


def test_decode_without_room_is_overloaded_and_too_small_is_final() -> None:
    full = [instance("prefill", "p", "n"), instance("decode", "d", "n", free_tokens=100)]
    assert refusal(Driven(full).place(request())).code == "overloaded"
    small = [instance("prefill", "p", "n"), instance("decode", "d", "n", capacity_tokens=100)]
    assert refusal(Driven(small).place(request())).code == "context_exceeded"


def test_a_replaced_incarnation_cannot_come_back_by_a_late_report() -> None:
    driven = Driven(two_nodes())
    driven.feed(InstanceLost("prefill", ("p1", "p1-1")))
    driven.feed(InstanceReported(instance("prefill", "p1", "n1", incarnation="p1-2")))
    driven.feed(InstanceReported(instance("prefill", "p1", "n1")))
    placed = decision(driven.place(request(prefill="p1")))
    assert placed.winner.prefill.incarnation == "p1-2"


def test_promises_count_until_the_instance_reports_them() -> None:
    decodes = [instance("decode", "d", "n1", free_tokens=2_500)]
    driven = Driven([instance("prefill", "p", "n1"), *decodes])
    assert decision(driven.place(request()))
    assert decision(driven.place(request()))
    assert refusal(driven.place(request())).code == "overloaded"
    driven.feed(InstanceReported(decodes[0]))
    assert decision(driven.place(request()))


def test_promises_that_nobody_takes_end_by_themselves() -> None:
    driven = Driven(
        [instance("prefill", "p", "n1"), instance("decode", "d", "n1", free_tokens=1_200)]
    )
    assert decision(driven.place(request()))
    assert refusal(driven.place(request())).code == "overloaded"
    driven.now_s = 2.0
    assert driven.core.next_deadline_s() == pytest.approx(2.0)
    driven.feed(TimerFired())
    assert decision(driven.place(request()))


def test_decode_pulls_from_a_replica_unless_its_own_node_has_the_prefix() -> None:
    on_own_node = request(prefill="p1", decode="d1")
    assert decision(Driven(two_nodes()).place(on_own_node, match("n1", 60))).decode_source is None
    other = request(prefill="p1", decode="d2")
    source = decision(Driven(two_nodes()).place(other, match("n1", 60))).decode_source
    assert source is not None
    assert (source.node, source.num_blocks) == ("n1", 60)
    both = decision(Driven(two_nodes()).place(other, match("n1", 60), match("n2", 62)))
    assert both.decode_source is None


def test_instances_of_another_format_are_not_paired() -> None:
    instances = [instance("prefill", "p", "n1"), instance("decode", "d", "n1", root=b"x" * 16)]
    answer = refusal(Driven(instances).place(request()))
    assert answer.code == "no_instance"
    assert "other_format" in answer.message


def test_explain_decides_the_same_and_changes_nothing() -> None:
    driven = Driven(two_nodes())
    before = driven.core.next_deadline_s()
    explained = driven.core.explain(request(), [match("n2", 60)], 0.0)
    assert isinstance(explained, PlacementDecision)
    assert driven.core.next_deadline_s() == before
    placed = decision(driven.place(request(), match("n2", 60)))
    assert placed.winner.prefill == explained.winner.prefill
    assert isinstance(driven.core.explain(request(model="other"), [], 0.0), Refusal)


def test_an_unknown_policy_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="policy: 'best'"):
        ConductorCore(CoreSettings(policy="best"), random.Random(0))


def test_what_another_conductor_asks_for_counts_until_a_report_shows_it() -> None:
    driven = Driven(
        [instance("prefill", f"p{n}", f"n{n}") for n in (1, 2)] + [instance("decode", "d", "n9")]
    )
    asked = AskedElsewhere("m", "prefill", ("p1", "p1-1"), 4_000, 10, 0)
    driven.now_s = 1.0
    driven.feed(asked)
    driven.feed(replace(asked, instance=("p1", "another")))
    driven.now_s = 1.01
    driven.feed(InstanceReported(instance("prefill", "p1", "n1")))
    answer = driven.place(request())
    assert isinstance(answer, AnswerPlaced)
    assert answer.decision.winner.prefill.id == "p2"
    driven.now_s = 1.2
    driven.feed(InstanceReported(instance("prefill", "p1", "n1")))
    seen = driven.core.view.find("prefill", ("p1", "p1-1"))
    assert seen is not None
    assert seen.promises == {}
