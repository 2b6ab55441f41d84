"""The life of a request whose prompt is scored: pieces of one attempt, given once."""

import random

from services.gateway.idle_evidence import BOTH_IDLE_S
from services.gateway.life_events import (
    AskPlacement,
    Blame,
    CancelAttempt,
    Fail,
    Finish,
    GivePrompt,
    GiveTokens,
    InstanceLost,
    InstanceReported,
    Placed,
    PrefillDone,
    StartRun,
)
from services.gateway.request_life import RequestLife
from shared.messages.common import ErrorCode, ErrorInfo
from shared.messages.conductor import Placement
from shared.messages.tokens import PromptLogprobs
from tests.unit.gateway.test_request_life import DEADLINE_S, EOS, chunk, placement

ALONE = placement().model_copy(update={"decode": None})


def piece(first: int, num_tokens: int) -> PromptLogprobs:
    return PromptLogprobs(first=first, logprobs=bytes(4 * num_tokens))


def scored_life(where: Placement = ALONE, max_tokens: int = 0) -> RequestLife:
    """Of a prompt of four tokens."""
    life = RequestLife(
        max_tokens=max_tokens,
        eos_token_ids=frozenset({EOS}),
        deadline_s=DEADLINE_S,
        rng=random.Random(1),
        scored_tokens=4,
    )
    assert life.start(0.0) == [AskPlacement(0, (), needs_scores=True)]
    placed = life.on_event(Placed(0, where), 0.0)
    assert placed == [StartRun(0, where, (), needs_scores=True)]
    return life


def tell(life: RequestLife, attempt: int, *pieces: PromptLogprobs) -> None:
    for one in pieces:
        assert life.on_event(chunk(attempt, 0, stage="prefill", prompt=one), 1.0) == []


def test_a_prompt_alone_is_given_with_the_end_and_nobody_else_is_told() -> None:
    life = scored_life()
    tell(life, 0, piece(1, 2), piece(3, 1))
    effects = life.on_event(chunk(0, 0, stage="prefill", finish="length"), 1.0)
    assert effects == [GivePrompt((piece(1, 2), piece(3, 1))), Finish("length")]
    assert life.next_deadline_s() is None


def test_the_prompt_comes_before_token_0_and_once() -> None:
    life = scored_life(placement(), max_tokens=4)
    tell(life, 0, piece(1, 3))
    effects = life.on_event(chunk(0, 0, 5, stage="prefill"), 1.0)
    assert effects == [GivePrompt((piece(1, 3),)), GiveTokens(0, (5,))]
    lost = life.on_event(InstanceLost("d", "it is gone", is_replaced=True), 2.0)
    assert [type(effect) for effect in lost] == [CancelAttempt, AskPlacement]
    assert lost[-1] == AskPlacement(1, ("d",), is_resume=True, needs_scores=False)
    assert life.on_event(Placed(1, placement()), 2.0) == [StartRun(1, placement(), (5,))]
    assert life.on_event(chunk(1, 1, 6), 3.0) == [PrefillDone(1), GiveTokens(1, (6,))]


def test_a_prefill_that_dies_takes_its_pieces_with_it() -> None:
    life = scored_life()
    tell(life, 0, piece(1, 2))
    lost = life.on_event(InstanceLost("p", "it is gone", is_replaced=False), 1.5)
    assert [type(effect) for effect in lost] == [CancelAttempt, AskPlacement]
    assert lost[0] == CancelAttempt(0, ALONE.prefill, None, "it is gone")
    life.on_event(Placed(1, ALONE), 2.0)
    assert life.on_event(chunk(0, 0, stage="prefill", prompt=piece(3, 1)), 2.0) == []
    tell(life, 1, piece(3, 1))
    missing = life.on_event(chunk(1, 0, stage="prefill", finish="length"), 2.0)
    assert [type(effect) for effect in missing] == [CancelAttempt, AskPlacement]
    life.on_event(Placed(2, ALONE), 3.0)
    tell(life, 2, piece(1, 3))
    effects = life.on_event(chunk(2, 0, stage="prefill", finish="length"), 3.0)
    assert effects == [GivePrompt((piece(1, 3),)), Finish("length")]


def test_an_instance_that_never_sends_them_fails_the_request_after_all_tries() -> None:
    life = scored_life()
    for attempt in range(5):
        effects = life.on_event(chunk(attempt, 0, stage="prefill", finish="length"), 1.0)
        if attempt < 4:
            life.on_event(Placed(attempt + 1, ALONE), 1.0)
    assert isinstance(effects[-1], Fail)


def test_a_prefill_alone_that_is_idle_for_long_has_forgotten_the_prompt() -> None:
    life = scored_life()
    idle = InstanceReported("p", is_idle=True)
    assert life.on_event(idle, 1.0) == []
    assert life.on_event(InstanceReported("other", is_idle=True), 1.0) == []
    assert life.on_event(idle, 0.9 + BOTH_IDLE_S) == []
    assert [type(one) for one in life.on_event(idle, 1.0 + BOTH_IDLE_S)] == [
        CancelAttempt,
        AskPlacement,
    ]


def test_an_error_of_a_prefill_alone_blames_nobody_else() -> None:
    life = scored_life()
    error = ErrorInfo(code=ErrorCode.INTERNAL, message="no", is_retryable=True)
    effects = life.on_event(chunk(0, 0, stage="prefill", error=error), 1.0)
    assert effects[0] == Blame("prefill", ALONE.prefill)
    assert [type(effect) for effect in effects] == [Blame, CancelAttempt, AskPlacement]
