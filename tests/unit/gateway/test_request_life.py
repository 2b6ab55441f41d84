"""The life of one request: single rules. Any order of faults is in tests/property."""

import pytest

from services.gateway.idle_evidence import BOTH_IDLE_S, DECODE_IDLE_S
from services.gateway.life_events import (
    Abandoned,
    AskPlacement,
    Blame,
    CancelAttempt,
    Effect,
    Fail,
    Finish,
    GiveTokens,
    InstanceLost,
    InstanceReported,
    Placed,
    PlacementRefused,
    PrefillDone,
    RunFailed,
    Stage,
    StartRun,
    StopMatched,
    TimePassed,
)
from shared.messages.common import ErrorCode, ErrorInfo, Targets
from tests.support.request_lives import (
    DEADLINE_S,
    EOS,
    chunk,
    new_life,
    placement,
    refusal,
    running_life,
)

GONE = ErrorInfo(code=ErrorCode.CANCELLED, message="gone")


def test_tokens_are_given_in_order_and_the_last_word_ends_it() -> None:
    life = running_life()
    assert life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0) == [GiveTokens(0, (5,))]
    assert life.on_event(chunk(0, 1, 6, 7), 1.0) == [PrefillDone(0), GiveTokens(1, (6, 7))]
    assert life.on_event(chunk(0, 3, EOS, finish="stop"), 1.0) == [
        GiveTokens(3, (EOS,)),
        Finish("stop"),
    ]
    assert life.next_deadline_s() is None


def test_a_prefill_that_ends_the_answer_lets_decode_go() -> None:
    life = running_life(max_tokens=1)
    effects = life.on_event(chunk(0, 0, 5, stage="prefill", finish="length"), 1.0)
    assert [type(effect) for effect in effects] == [GiveTokens, CancelAttempt, Finish]


def test_what_comes_before_its_turn_waits_for_it() -> None:
    life = running_life()
    assert life.on_event(chunk(0, 1, 6), 1.0) == [PrefillDone(0)]
    assert life.on_event(chunk(0, 0, 5, stage="prefill"), 1.1) == [GiveTokens(0, (5, 6))]
    assert life.next_deadline_s() == DEADLINE_S


def test_a_gap_that_stays_starts_a_new_attempt_with_the_tokens_given() -> None:
    life = running_life()
    life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    life.on_event(chunk(0, 2, 7), 1.0)
    due_s = life.next_deadline_s()
    assert due_s is not None
    assert life.on_event(TimePassed(), due_s - 0.01) == []
    effects = life.on_event(TimePassed(), due_s)
    assert [type(effect) for effect in effects] == [CancelAttempt, AskPlacement]
    assert life.on_event(chunk(0, 1, 6), due_s) == [], "late chunks of an old attempt are dropped"
    assert life.on_event(Placed(1, placement()), due_s) == [StartRun(1, placement(), (5,))]


def test_an_answer_that_is_whole_ends_although_its_last_word_is_lost() -> None:
    life = running_life(max_tokens=2)
    life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    life.on_event(chunk(0, 1, 6), 1.0)
    due_s = life.next_deadline_s()
    assert due_s is not None
    effects = life.on_event(TimePassed(), due_s)
    assert [type(effect) for effect in effects] == [CancelAttempt, Finish]


def test_a_lost_prefill_matters_until_decode_speaks() -> None:
    lost = InstanceLost("p", "p is gone", is_replaced=False)
    life = running_life()
    assert [type(effect) for effect in life.on_event(lost, 1.0)] == [CancelAttempt, AskPlacement]
    life = running_life()
    life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    life.on_event(chunk(0, 1, 6), 1.0)
    assert life.on_event(lost, 1.0) == []


def test_a_lost_decode_is_excluded() -> None:
    life = running_life()
    effects = life.on_event(InstanceLost("d", "d is gone", is_replaced=True), 1.0)
    assert effects[-1] == AskPlacement(1, ("d",))
    assert life.on_event(InstanceLost("d", "d is gone", is_replaced=True), 1.0) == []


def test_a_silent_one_gets_another_chance_when_nobody_else_is_left_but_a_dead_one_does_not() -> (
    None
):
    life = running_life()
    life.on_event(InstanceLost("p", "silent", is_replaced=False), 1.0)
    life.on_event(Placed(1, placement("p2", "d")), 1.0)
    life.on_event(InstanceLost("d", "dead", is_replaced=True), 1.0)
    now_s, attempt = 1.0, 2
    asked: list[Effect] = []
    while now_s < 6.0:
        error = PlacementRefused(attempt, refusal(ErrorCode.NO_INSTANCE))
        assert life.on_event(error, now_s) == []
        due_s = life.next_deadline_s()
        assert due_s is not None
        now_s, attempt = due_s, attempt + 1
        asked = life.on_event(TimePassed(), now_s)
    assert asked == [AskPlacement(attempt, ("d",))]


def test_the_one_that_is_to_blame_is_excluded() -> None:
    def excluded(stage: Stage, code: ErrorCode) -> tuple[str, ...]:
        life = running_life()
        life.on_event(RunFailed(0, stage, refusal(code)), 1.0)
        return life._exclusions.incarnations

    assert excluded("prefill", ErrorCode.POOL_LOST) == ("p",)
    assert excluded("decode", ErrorCode.DEADLINE) == ("d",)
    assert excluded("decode", ErrorCode.PEER_LOST) == ("p",)
    assert excluded("prefill", ErrorCode.PEER_LOST) == ("d",)
    assert excluded("prefill", ErrorCode.NOT_RESERVED) == ()


def test_overload_is_waited_for_shortly_and_then_told() -> None:
    life = new_life()
    life.start(0.0)
    now_s, attempt = 0.0, 0
    while True:
        effects = life.on_event(PlacementRefused(attempt, refusal(ErrorCode.OVERLOADED)), now_s)
        if effects:
            break
        due_s = life.next_deadline_s()
        assert due_s is not None
        now_s, attempt = due_s, attempt + 1
        assert life.on_event(TimePassed(), now_s) == [AskPlacement(attempt, ())]
    assert effects == [Fail(refusal(ErrorCode.OVERLOADED))]
    assert 1.0 < now_s < 2.0
    assert attempt < 10


def test_time_in_which_nobody_answered_is_no_time_without_room() -> None:
    life = new_life()
    life.start(0.0)
    assert life.on_event(PlacementRefused(0, refusal(ErrorCode.DEADLINE)), 2.0) == []
    assert life.on_event(TimePassed(), 2.5) == [AskPlacement(1, ())]
    full = refusal(ErrorCode.OVERLOADED)
    assert life.on_event(PlacementRefused(1, full), 10.0) == []
    assert life.on_event(TimePassed(), 11.0) == [AskPlacement(2, ())]
    assert life.on_event(PlacementRefused(2, full), 12.0) == [Fail(full)]


def test_who_was_placed_once_is_accepted_and_waits_longer_for_room() -> None:
    life = running_life()
    life.on_event(InstanceLost("p", "gone", is_replaced=False), 1.0)
    assert life.phase == "placing"
    now_s, attempt = 1.0, 1
    while life.on_event(PlacementRefused(attempt, refusal(ErrorCode.OVERLOADED)), now_s) == []:
        due_s = life.next_deadline_s()
        assert due_s is not None
        now_s, attempt = due_s, attempt + 1
        life.on_event(TimePassed(), now_s)
    assert 25.0 < now_s < 31.0


@pytest.mark.parametrize(
    ("code", "stage", "blamed"),
    [
        (ErrorCode.INTERNAL, "prefill", "prefill"),
        (ErrorCode.DEADLINE, "decode", "decode"),
        (ErrorCode.PEER_LOST, "decode", "prefill"),
        (ErrorCode.OVERLOADED, "decode", None),
        (ErrorCode.DRAINING, "prefill", None),
        (ErrorCode.VOID_INCARNATION, "prefill", None),
    ],
)
def test_who_is_blamed_for_an_error(code: ErrorCode, stage: Stage, blamed: Stage | None) -> None:
    effects = running_life().on_event(RunFailed(0, stage, refusal(code)), 1.0)
    found = [effect for effect in effects if isinstance(effect, Blame)]
    placed = placement()
    wanted = {"prefill": placed.prefill, "decode": placed.decode}
    assert found == ([] if blamed is None else [Blame(blamed, wanted[blamed])])


def test_a_refusal_that_no_wait_helps_is_told_at_once() -> None:
    life = new_life()
    life.start(0.0)
    error = refusal(ErrorCode.UNKNOWN_INSTANCE, is_retryable=False)
    assert life.on_event(PlacementRefused(0, error), 0.0) == [Fail(error)]


def test_a_target_that_would_be_missed_is_told_at_once_and_is_none_once_tokens_are_given() -> None:
    missed = refusal(ErrorCode.OVERLOADED).model_copy(
        update={"targets": Targets(predicted_ttft_s=2.0, allowed_ttft_s=1.0)}
    )
    life = new_life()
    life.start(0.0)
    assert life.on_event(PlacementRefused(0, missed), 0.0) == [Fail(missed)]
    life = running_life()
    life.on_event(chunk(0, 0, 1, stage="prefill"), 1.0)
    effects = life.on_event(InstanceLost("d", "dead", is_replaced=True), 1.0)
    assert effects[-1] == AskPlacement(1, ("d",), is_resume=True)
    assert life.on_event(PlacementRefused(1, missed), 1.0) == []  # it is worth waiting for


def test_what_decode_refuses_after_the_prefill_ends_at_once_and_frees_both() -> None:
    missed = refusal(ErrorCode.OVERLOADED).model_copy(
        update={"targets": Targets(predicted_tbt_s=0.2, allowed_tbt_s=0.1)}
    )
    life = running_life()
    effects = life.on_event(chunk(0, 0, stage="prefill", error=missed), 1.0)
    assert [type(effect) for effect in effects] == [CancelAttempt, Fail]
    assert effects[-1] == Fail(missed, is_after_prefill=True)
    assert life.next_deadline_s() is None
    # Another reason to end the attempt is worth another one.
    life = running_life()
    effects = life.on_event(chunk(0, 0, stage="prefill", error=refusal(ErrorCode.OVERLOADED)), 1.0)
    assert [type(effect) for effect in effects] == [CancelAttempt]
    assert life.next_deadline_s() is not None


def test_attempts_are_bounded() -> None:
    life = running_life()
    effects: list[Effect] = []
    for attempt in range(5):
        effects = life.on_event(RunFailed(attempt, "decode", refusal(ErrorCode.INTERNAL)), 1.0)
        life.on_event(Placed(attempt + 1, placement()), 1.0)
    assert [type(effect) for effect in effects] == [Blame, CancelAttempt, Fail]
    assert life.num_runs == 5


def test_a_request_that_is_handed_back_goes_on_as_long_as_it_gets_tokens() -> None:
    life = running_life(max_tokens=100)
    overloaded = refusal(ErrorCode.OVERLOADED)
    for attempt in range(12):
        life.on_event(chunk(attempt, attempt, 7), 1.0)
        life.on_event(RunFailed(attempt, "decode", overloaded), 1.0)
        assert life.phase == "waiting"
        life.on_event(TimePassed(), 10.0)
        life.on_event(Placed(attempt + 1, placement()), 10.0)
    for attempt in range(12, 17):
        assert life.phase == "running"
        life.on_event(RunFailed(attempt, "decode", overloaded), 11.0)
        life.on_event(TimePassed(), 20.0)
        life.on_event(Placed(attempt + 1, placement()), 20.0)
    assert life.phase == "ended"


def test_the_deadline_ends_everything() -> None:
    life = running_life()
    effects = life.on_event(TimePassed(), DEADLINE_S)
    assert isinstance(effects[0], CancelAttempt)
    assert isinstance(effects[1], Fail)
    assert effects[1].error.code == ErrorCode.DEADLINE


def test_who_leaves_while_placing_releases_what_is_placed_later() -> None:
    life = new_life()
    life.start(0.0)
    assert life.on_event(Abandoned(GONE), 1.0) == [Fail(GONE)]
    effects = life.on_event(Placed(0, placement()), 1.1)
    assert [type(effect) for effect in effects] == [CancelAttempt]
    assert life.on_event(Abandoned(GONE), 1.2) == []


def test_a_stop_string_cancels_the_run_and_finishes() -> None:
    life = running_life()
    life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    effects = life.on_event(StopMatched(), 1.0)
    assert [type(effect) for effect in effects] == [CancelAttempt, Finish]


def test_a_decode_that_spoke_and_is_idle_has_forgotten_the_request() -> None:
    life = running_life()
    life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    life.on_event(chunk(0, 1, 6), 1.0)
    assert life.on_event(InstanceReported("d", is_idle=True), 1.5) == []
    late_s = 1.5 + DECODE_IDLE_S
    effects = life.on_event(InstanceReported("d", is_idle=True), late_s)
    assert [type(effect) for effect in effects] == [CancelAttempt, AskPlacement]


def test_before_decode_speaks_both_must_be_idle_for_long() -> None:
    life = running_life()
    for instance in ("p", "d"):
        life.on_event(InstanceReported(instance, is_idle=True), 1.0)
    late_s = 1.0 + BOTH_IDLE_S
    assert life.on_event(InstanceReported("p", is_idle=False), late_s) == []
    assert life.on_event(InstanceReported("d", is_idle=True), late_s) == []
    life.on_event(InstanceReported("p", is_idle=True), late_s)
    effects = life.on_event(InstanceReported("d", is_idle=True), late_s + BOTH_IDLE_S)
    assert [type(effect) for effect in effects] == [CancelAttempt, AskPlacement]


def test_a_repeat_of_what_was_given_starts_no_wait() -> None:
    life = running_life()
    life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    assert life.on_event(chunk(0, 0, 5, stage="prefill"), 1.1) == []
    assert life.next_deadline_s() == DEADLINE_S


def test_what_an_old_attempt_says_is_dropped_while_the_new_one_runs() -> None:
    life = running_life()
    life.on_event(RunFailed(0, "decode", refusal(ErrorCode.POOL_LOST)), 1.0)
    life.on_event(Placed(1, placement("p", "d2")), 1.0)
    assert life.on_event(chunk(0, 0, 5, stage="prefill"), 1.1) == []
    assert life.on_event(chunk(0, 0, error=refusal(ErrorCode.CANCELLED)), 1.1) == []
    assert life.on_event(RunFailed(0, "prefill", refusal(ErrorCode.INTERNAL)), 1.1) == []
    assert life.on_event(chunk(1, 0, 6, stage="prefill"), 1.2) == [GiveTokens(0, (6,))]
