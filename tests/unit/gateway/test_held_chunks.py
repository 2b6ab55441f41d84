"""What comes before a gateway knows who was chosen: it is held, and counts for that one alone."""

import pytest

from services.gateway.life_events import (
    AskPlacement,
    Blame,
    CancelAttempt,
    Finish,
    GiveTokens,
    Placed,
    PlacementRefused,
    PrefillDone,
    StartRun,
    TimePassed,
)
from services.gateway.request_life import MAX_HELD
from shared.messages.common import ErrorCode
from tests.support.request_lives import chunk, new_life, placement, refusal


def test_what_comes_before_the_place_is_held_for_the_one_that_was_chosen() -> None:
    life = new_life()
    life.start(0.0)
    assert life.on_event(chunk(0, 0, 8, stage="prefill", incarnation="loser"), 0.1) == []
    assert life.on_event(chunk(0, 0, 5, stage="prefill", incarnation="p"), 0.2) == []
    effects = life.on_event(Placed(0, placement()), 0.3)
    assert effects == [StartRun(0, placement(), ()), GiveTokens(0, (5,))]
    assert life.on_event(chunk(0, 1, 8, incarnation="loser"), 0.4) == []
    late = chunk(0, 0, 8, stage="prefill", incarnation="loser", error=refusal(ErrorCode.INTERNAL))
    assert life.on_event(late, 0.4) == [], "its failure says nothing"
    assert life.on_event(chunk(0, 1, 6, incarnation="d"), 0.5) == [
        PrefillDone(0),
        GiveTokens(1, (6,)),
    ]


def test_an_answer_may_be_whole_before_its_place_is_heard_of() -> None:
    life = new_life(max_tokens=1)
    life.start(0.0)
    whole = chunk(0, 0, 5, stage="prefill", finish="length", incarnation="p")
    assert life.on_event(whole, 0.1) == []
    effects = life.on_event(Placed(0, placement()), 0.2)
    assert [type(one) for one in effects] == [StartRun, GiveTokens, CancelAttempt, Finish]


def test_a_failure_before_the_place_is_heard_of_counts_then() -> None:
    life = new_life()
    life.start(0.0)
    failed = refusal(ErrorCode.INTERNAL)
    assert life.on_event(chunk(0, 0, stage="prefill", error=failed, incarnation="p"), 0.1) == []
    effects = life.on_event(Placed(0, placement()), 0.2)
    assert [type(one) for one in effects] == [StartRun, Blame, CancelAttempt, AskPlacement]
    assert effects[-1] == AskPlacement(1, ("p",))


@pytest.mark.parametrize("code", [ErrorCode.OVERLOADED, ErrorCode.DEADLINE])
def test_what_was_held_goes_with_its_attempt(code: ErrorCode) -> None:
    life = new_life()
    life.start(0.0)
    life.on_event(chunk(0, 0, 5, stage="prefill", incarnation="p"), 0.1)
    assert life.on_event(PlacementRefused(0, refusal(code)), 0.2) == []
    due_s = life.next_deadline_s()
    assert due_s is not None
    assert life.on_event(TimePassed(), due_s) == [AskPlacement(1, ())]
    assert life.on_event(chunk(0, 0, 5, stage="prefill", incarnation="p"), due_s) == []
    assert life.on_event(Placed(1, placement()), due_s) == [StartRun(1, placement(), ())]


def test_few_are_held() -> None:
    life = new_life(max_tokens=100)
    life.start(0.0)
    for index in range(50):
        life.on_event(chunk(0, index, 5, stage="prefill", incarnation="p"), 0.1)
    effects = life.on_event(Placed(0, placement()), 0.2)
    given = [one.tokens for one in effects if isinstance(one, GiveTokens)]
    assert len(given) == MAX_HELD
