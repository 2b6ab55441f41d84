"""The run that goes with a question: whom it names, and whether it goes on when both promised."""

import pytest

from shared.scheduling.effects import AnswerPlaced, AnswerRefused, SendReserve
from shared.scheduling.events import PlaceAsked, ReserveAnswered
from shared.scheduling.vocabulary import InstanceView, PlacementDecision
from tests.support.placing import Driven, instance, request


def two_nodes() -> list[InstanceView]:
    return [instance("prefill", f"p{n}", f"n{n}") for n in (1, 2)] + [
        instance("decode", f"d{n}", f"n{n}") for n in (1, 2)
    ]


def decision(answer: AnswerPlaced | AnswerRefused) -> PlacementDecision:
    assert isinstance(answer, AnswerPlaced), answer
    return answer.decision


def named(driven: Driven) -> list[tuple[str, str | None]]:
    """Prefill instances that were asked, and whom the run names there."""
    return [
        (effect.instance[0], None if effect.decode is None else effect.decode.id)
        for effect in driven.reserved
        if effect.role == "prefill"
    ]


@pytest.mark.parametrize("has_run", [True, False])
def test_the_run_names_the_decode_that_is_asked_with_it(has_run: bool) -> None:
    driven = Driven(two_nodes())
    made = decision(driven.place(request(has_run=has_run)))
    assert made.decode is not None
    assert named(driven) == [(made.winner.prefill.id, made.decode.id if has_run else None)]
    assert made.is_started is has_run


def test_one_without_a_decode_names_none() -> None:
    driven = Driven(two_nodes())
    made = decision(driven.place(request(has_run=True, max_tokens=1, needs_decode=False)))
    assert named(driven) == [(made.winner.prefill.id, None)]
    assert made.is_started


def test_a_decode_that_refuses_leaves_a_run_that_names_another() -> None:
    refusing: list[str] = []

    def accepts(effect: SendReserve) -> bool:
        if effect.role == "decode" and not refusing:
            refusing.append(effect.instance[0])
            return False
        return True

    driven = Driven(two_nodes(), accepts=accepts)
    made = decision(driven.place(request(has_run=True)))
    assert made.decode is not None
    assert [decode for _, decode in named(driven)] == refusing
    assert made.decode.id not in refusing
    assert not made.is_started, "its gateway tells whom the run is for"


def test_the_run_goes_to_whoever_is_asked_in_place_of_one_that_refused() -> None:
    driven = Driven(
        two_nodes(),
        accepts=lambda effect: effect.role == "decode" or len(named(driven)) > 1,
    )
    made = decision(driven.place(request(has_run=True)))
    assert made.decode is not None
    assert [decode for _, decode in named(driven)] == [made.decode.id] * 2
    assert named(driven)[1][0] == made.winner.prefill.id
    assert made.is_started


def test_what_began_is_let_go_when_no_decode_is_left() -> None:
    driven = Driven(two_nodes(), accepts=lambda effect: effect.role == "prefill")
    assert isinstance(driven.place(request(has_run=True)), AnswerRefused)
    assert [(one.role, one.instance[0]) for one in driven.released] == [
        ("prefill", named(driven)[0][0])
    ]


def test_an_instance_that_does_not_know_of_runs_with_reservations_gets_it_later() -> None:
    driven = Driven(two_nodes())
    answers = driven.feed(PlaceAsked(9, request(has_run=True)))
    placed = [
        effect
        for asked in answers
        if isinstance(asked, SendReserve)
        for effect in driven.feed(
            ReserveAnswered(asked.place_id, asked.role, asked.instance, is_accepted=True)
        )
    ]
    (answer,) = placed
    assert isinstance(answer, AnswerPlaced)
    assert not answer.decision.is_started
