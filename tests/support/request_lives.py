"""Lives of requests and what comes to them, for the tests of their rules."""

import random

from services.gateway.life_events import (
    AskPlacement,
    ChunkArrived,
    Placed,
    Stage,
    StartRun,
)
from services.gateway.request_life import RequestLife
from shared.messages.bill import Times
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef, RequestRef
from shared.messages.conductor import Placement
from shared.messages.tokens import FinishReason, PromptLogprobs, TokenChunk

EOS = 99
DEADLINE_S = 100.0


def placement(prefill: str = "p", decode: str = "d") -> Placement:
    return Placement(
        prefill=InstanceRef(id=prefill, incarnation=prefill, node="a"),
        decode=InstanceRef(id=decode, incarnation=decode, node="b"),
        local_blocks=0,
        source=None,
        predicted=Times(),
        policy="p",
    )


def chunk(
    attempt: int,
    index: int,
    *tokens: int,
    stage: Stage = "decode",
    finish: FinishReason | None = None,
    error: ErrorInfo | None = None,
    prompt: PromptLogprobs | None = None,
    incarnation: str = "",
) -> ChunkArrived:
    ref = RequestRef(request_id="r", attempt=attempt, gateway="g", gateway_incarnation="i")
    return ChunkArrived(
        TokenChunk(
            ref=ref,
            stage=stage,
            index=index,
            tokens=list(tokens),
            finish_reason=finish,
            error=error,
            prompt=prompt,
            incarnation=incarnation,
        )
    )


def refusal(code: ErrorCode, *, is_retryable: bool = True) -> ErrorInfo:
    return ErrorInfo(code=code, message="no", is_retryable=is_retryable)


def new_life(max_tokens: int = 4) -> RequestLife:
    return RequestLife(
        max_tokens=max_tokens,
        eos_token_ids=frozenset({EOS}),
        deadline_s=DEADLINE_S,
        rng=random.Random(1),
    )


def running_life(max_tokens: int = 4) -> RequestLife:
    life = new_life(max_tokens)
    assert life.start(0.0) == [AskPlacement(0, ())]
    assert life.on_event(Placed(0, placement()), 0.0) == [StartRun(0, placement(), ())]
    return life
