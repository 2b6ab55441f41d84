"""The life of one request: placing, running, trying again, one end. Pure: events in, effects out.

Owns phase, attempts and the tokens given. Never awaits, never reads a clock, never sends.
Every call of place is an attempt with a number of its own, so that nothing said about an earlier
one can be mistaken; `num_runs` counts those that reached the instances.
"""

import random
from dataclasses import dataclass
from typing import Literal

from services.gateway.answer_tokens import AnswerTokens
from services.gateway.exclusions import Exclusions
from services.gateway.idle_evidence import IdleEvidence
from services.gateway.life_events import (
    Abandoned,
    AskPlacement,
    Blame,
    CancelAttempt,
    ChunkArrived,
    Effect,
    Event,
    Fail,
    Finish,
    GivePrompt,
    GiveTokens,
    InstanceLost,
    InstanceReported,
    Placed,
    PlacementRefused,
    PrefillDone,
    RunFailed,
    Stage,
    StageReported,
    StartRun,
    StopMatched,
)
from services.gateway.prompt_pieces import PromptPieces
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef
from shared.messages.conductor import Placement
from shared.messages.tokens import FinishReason, TokenChunk

MAX_HELD = 16
"""A prefill instance sends one chunk or two; each that is asked may do so."""
Phase = Literal["new", "placing", "waiting", "running", "ended"]
# Errors that say nothing against the instance that raised them.
_NO_BLAME = frozenset(
    {ErrorCode.NOT_RESERVED, ErrorCode.OVERLOADED, ErrorCode.CANCELLED, ErrorCode.KV_LOST}
)
# Errors of an instance that is going or was started anew: no work is judged by them.
_LEAVING = frozenset(
    {
        ErrorCode.VOID_INCARNATION,
        ErrorCode.DRAINING,
        ErrorCode.POOL_LOST,
        ErrorCode.NO_INSTANCE,
        ErrorCode.UNKNOWN_INSTANCE,
    }
)
# Errors that are the request's own.
_OF_REQUEST = frozenset(
    {ErrorCode.BAD_REQUEST, ErrorCode.CONTEXT_EXCEEDED, ErrorCode.UNKNOWN_MODEL}
)


@dataclass(frozen=True, slots=True)
class LifeLimits:
    max_runs: int = 5
    overload_patience_s: float = 2.0
    no_instance_patience_s: float = 30.0
    first_delay_s: float = 0.05
    max_delay_s: float = 1.0
    gap_timeout_s: float = 1.0
    lift_after_s: float = 3.0


class RequestLife:
    """One request until its one end. `deadline_s` bounds everything."""

    def __init__(
        self,
        *,
        max_tokens: int,
        eos_token_ids: frozenset[int],
        deadline_s: float,
        rng: random.Random,
        scored_tokens: int = 0,
        limits: LifeLimits | None = None,
    ) -> None:
        """`scored_tokens`: of a prompt whose log probabilities are wanted, all its tokens."""
        self._limits = limits or LifeLimits()
        self._deadline_s = deadline_s
        self._rng = rng
        self._tokens = AnswerTokens(max_tokens, eos_token_ids)
        self._pieces = PromptPieces(scored_tokens) if scored_tokens else None
        self._exclusions = Exclusions(self._limits.lift_after_s)
        self._idle = IdleEvidence()
        self._placement: Placement | None = None
        self._held: list[TokenChunk] = []
        """Of the present attempt, before it is known who was chosen to work on it."""
        self._decode_began = False
        self._refused_since_s: float | None = None
        self._full_since_s: float | None = None
        """Since when there is no room; before it, nobody may have answered."""
        self._num_waits = 0
        self._wake_s: float | None = None
        self.phase: Phase = "new"
        self.attempt = -1
        self.num_runs = 0
        self._num_failed = 0
        """Runs that count against `max_runs`: not those that were handed back with new tokens."""
        self._given_before = 0

    @property
    def given(self) -> tuple[int, ...]:
        return tuple(self._tokens.given)

    @property
    def _needs_scores(self) -> bool:
        return self._pieces is not None and not self._pieces.is_given

    def is_running(self, attempt: int) -> bool:
        """Whether this attempt is the present one and placed."""
        return self.phase == "running" and self.attempt == attempt

    def start(self, now_s: float) -> list[Effect]:
        return self._ask()

    def next_deadline_s(self) -> float | None:
        """When TimePassed is due; None once the request has ended."""
        if self.phase == "ended":
            return None
        return self._deadline_s if self._wake_s is None else min(self._wake_s, self._deadline_s)

    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, Placed):
            return self._on_placed(event, now_s)
        if self.phase == "ended":
            return []
        match event:
            case Abandoned():
                return self._fail(event.error)
            case _ if now_s >= self._deadline_s:
                return self._fail(
                    ErrorInfo(
                        code=ErrorCode.DEADLINE,
                        message="the request did not finish within its time limit",
                    )
                )
            case PlacementRefused():
                return self._on_refused(event, now_s)
            case StopMatched():
                return self._finish("stop", needs_cancel=True)
            case RunFailed() | ChunkArrived() | InstanceLost() | InstanceReported():
                return self._on_attempt_event(event, now_s)
            case _:
                return self._on_time(now_s)

    # --- placing -------------------------------------------------------------------------------
    def _ask(self) -> list[Effect]:
        self.phase = "placing"
        self.attempt += 1
        self._placement = None
        self._held = []
        self._wake_s = None
        is_resume = bool(self._tokens.given)
        exclude = self._exclusions.incarnations
        return [AskPlacement(self.attempt, exclude, is_resume, self._needs_scores)]

    def _on_placed(self, event: Placed, now_s: float) -> list[Effect]:
        placement = event.placement
        if self.phase != "placing" or event.attempt != self.attempt:
            reason = "placed too late"
            return [CancelAttempt(event.attempt, placement.prefill, placement.decode, reason)]
        self.phase = "running"
        self.num_runs += 1
        self._placement = placement
        self._decode_began = False
        self._refused_since_s = self._full_since_s = None
        self._tokens.begin_attempt()
        if self._pieces is not None:
            self._pieces.begin_attempt()
        has_decode = placement.decode is not None
        self._idle.begin_attempt(("prefill", "decode") if has_decode else ("prefill",))
        effects: list[Effect] = [StartRun(self.attempt, placement, self.given, self._needs_scores)]
        held, self._held = self._held, []
        for chunk in held:
            effects += self._on_attempt_event(ChunkArrived(chunk), now_s)
        return effects

    def _hold(self, chunk: TokenChunk) -> None:
        """The run may have gone with the question and be done before the answer is here."""
        is_present = self.phase == "placing" and chunk.ref.attempt == self.attempt
        if is_present and len(self._held) < MAX_HELD:
            self._held.append(chunk)

    def _on_refused(self, event: PlacementRefused, now_s: float) -> list[Effect]:
        if self.phase != "placing" or event.attempt != self.attempt:
            return []
        error = event.error
        if not error.is_retryable and error.code != ErrorCode.NO_INSTANCE:
            return self._fail(error)
        if error.code == ErrorCode.NO_INSTANCE:
            self._exclusions.lift_old(now_s)
        if error.targets is not None and not self._tokens.given:
            return self._fail(error)  # waiting makes its first token no earlier
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        until_s = self._refused_since_s + self._limits.no_instance_patience_s
        # One that was placed already is accepted: that it has to be placed anew is not its fault.
        if error.code == ErrorCode.OVERLOADED and not self.num_runs:
            if self._full_since_s is None:
                self._full_since_s = now_s
            until_s = min(until_s, self._full_since_s + self._limits.overload_patience_s)
        delay_s = self._next_delay_s()
        return self._fail(error) if now_s + delay_s > until_s else self._wait(now_s + delay_s)

    def _next_delay_s(self) -> float:
        """Growing, with jitter so that refused requests do not come back as one."""
        grown_s = self._limits.first_delay_s * 2.0**self._num_waits
        self._num_waits = min(self._num_waits + 1, 16)
        return min(self._limits.max_delay_s, grown_s) * self._rng.uniform(0.5, 1.0)

    def _wait(self, until_s: float) -> list[Effect]:
        self.phase = "waiting"
        self._placement = None
        self._wake_s = until_s
        return []

    # --- running -------------------------------------------------------------------------------
    def _on_attempt_event(
        self, event: RunFailed | ChunkArrived | InstanceLost | InstanceReported, now_s: float
    ) -> list[Effect]:
        placement = self._placement
        if self.phase != "running" or placement is None:
            if isinstance(event, ChunkArrived):
                self._hold(event.chunk)
            return []
        match event:
            case RunFailed(attempt=attempt) if attempt == self.attempt:
                return self._on_stage_error(event.stage, event.error, placement, now_s)
            case ChunkArrived(chunk=chunk) if chunk.ref.attempt == self.attempt:
                if _is_of(placement, chunk):
                    return self._on_chunk(chunk, placement, now_s)
            case InstanceLost():
                return self._on_lost(event, placement, now_s)
            case InstanceReported():
                return self._on_report(event, placement, now_s)
        return []

    def _on_chunk(self, chunk: TokenChunk, placement: Placement, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if chunk.times is not None or chunk.reuse is not None:
            effects.append(StageReported(self.attempt, chunk.stage, chunk.times, chunk.reuse))
        if chunk.error is not None:
            return effects + self._on_stage_error(chunk.stage, chunk.error, placement, now_s)
        if chunk.stage == "decode" and not self._decode_began:
            self._decode_began = True
            effects.append(PrefillDone(self.attempt))
        self._idle.reset()
        if self._pieces is not None and chunk.prompt is not None:
            self._pieces.take(chunk.prompt)
        if self._needs_scores and (chunk.tokens or chunk.finish_reason is not None):
            prompt = self._whole_prompt()
            if not prompt:
                return effects + self._lost_tokens(now_s)
            effects += prompt
        first_index = len(self._tokens.given)
        new = self._tokens.take(chunk.index, chunk.tokens, chunk.logprobs)
        if new.tokens:
            effects.append(GiveTokens(first_index, new.tokens, new.logprobs))
        if chunk.finish_reason is not None:
            self._tokens.end_at(chunk.index + len(chunk.tokens), chunk.finish_reason)
        reason = self._tokens.finished
        if reason is not None:
            # A prefill that ends the answer itself leaves decode waiting for it.
            needs_cancel = placement.decode is not None and not self._decode_began
            return effects + self._finish(reason, needs_cancel=needs_cancel)
        if not self._tokens.is_waiting_for_lost:
            self._wake_s = None
        elif new.tokens or self._wake_s is None:
            self._wake_s = now_s + self._limits.gap_timeout_s
        return effects

    def _whole_prompt(self) -> list[Effect]:
        """Before the first word of the answer: prefill sends it once all of this was heard."""
        assert self._pieces is not None
        pieces = self._pieces.whole()
        if pieces is None:
            return []
        self._pieces.is_given = True
        return [GivePrompt(pieces)]

    def _on_stage_error(
        self, stage: Stage, error: ErrorInfo, placement: Placement, now_s: float
    ) -> list[Effect]:
        own = placement.instance(stage)
        peer = placement.instance("decode" if stage == "prefill" else "prefill")
        blame: list[Effect] = []
        if own is None:  # it was never asked
            return []
        if error.targets is not None and not self._tokens.given:
            return self._fail(error, is_after_prefill=True)
        if error.code == ErrorCode.PEER_LOST and peer is not None:
            self._exclusions.add(peer.incarnation, now_s, is_final=False)
            blame.append(Blame("decode" if stage == "prefill" else "prefill", peer))
        elif error.code not in _NO_BLAME:
            is_final = error.code == ErrorCode.VOID_INCARNATION
            self._exclusions.add(own.incarnation, now_s, is_final=is_final)
            is_late = error.code == ErrorCode.DEADLINE and not error.is_retryable
            if error.code not in _LEAVING | _OF_REQUEST and not is_late:
                blame.append(Blame(stage, own))
        return blame + self._try_again(error, now_s, needs_delay=error.code in _NO_BLAME)

    def _on_lost(self, event: InstanceLost, placement: Placement, now_s: float) -> list[Effect]:
        is_prefill = event.incarnation == placement.prefill.incarnation
        is_decode = _is(placement.decode, event.incarnation)
        if not is_decode and not (is_prefill and not self._decode_began):
            return []
        self._exclusions.add(event.incarnation, now_s, is_final=event.is_replaced)
        error = ErrorInfo(code=ErrorCode.NO_INSTANCE, message=event.reason, is_retryable=True)
        return self._try_again(error, now_s)

    def _on_report(
        self, event: InstanceReported, placement: Placement, now_s: float
    ) -> list[Effect]:
        """Instances that are idle have forgotten the request: its last words were lost."""
        is_decode = _is(placement.decode, event.incarnation)
        if not is_decode and event.incarnation != placement.prefill.incarnation:
            return []
        stage: Stage = "decode" if is_decode else "prefill"
        if not self._idle.is_forgotten(stage, event.is_idle, self._decode_began, now_s):
            return []
        return self._lost_tokens(now_s)

    def _on_time(self, now_s: float) -> list[Effect]:
        if self._wake_s is None or now_s < self._wake_s:
            return []
        if self.phase == "waiting":
            return self._ask()
        return self._lost_tokens(now_s) if self.phase == "running" else []

    def _lost_tokens(self, now_s: float) -> list[Effect]:
        error = ErrorInfo(
            code=ErrorCode.INTERNAL,
            message="tokens of the answer were lost on the way too often; send the request again",
            is_retryable=True,
        )
        return self._try_again(error, now_s)

    # --- the end of an attempt -----------------------------------------------------------------
    def _try_again(
        self, error: ErrorInfo, now_s: float, *, needs_delay: bool = False
    ) -> list[Effect]:
        reason = self._tokens.natural_end
        if reason is not None:
            return self._finish(reason, needs_cancel=True)
        has_new = len(self.given) > self._given_before
        self._given_before = len(self.given)
        self._num_failed += not (has_new and error.code in _NO_BLAME)
        if not error.is_retryable or self._num_failed >= self._limits.max_runs:
            return self._fail(error)
        effects = self._cancel(error.message)
        if needs_delay:
            return effects + self._wait(now_s + self._next_delay_s())
        return effects + self._ask()

    def _cancel(self, reason: str) -> list[Effect]:
        placement, self._placement = self._placement, None
        if placement is None:
            return []
        return [CancelAttempt(self.attempt, placement.prefill, placement.decode, reason)]

    def _finish(self, reason: FinishReason, *, needs_cancel: bool) -> list[Effect]:
        effects = self._cancel("the answer is complete") if needs_cancel else []
        self.phase = "ended"
        return [*effects, Finish(reason)]

    def _fail(self, error: ErrorInfo, *, is_after_prefill: bool = False) -> list[Effect]:
        effects = self._cancel(error.message)
        self.phase = "ended"
        return [*effects, Fail(error, is_after_prefill)]


def _is(instance: InstanceRef | None, incarnation: str) -> bool:
    return instance is not None and instance.incarnation == incarnation


def _is_of(placement: Placement, chunk: TokenChunk) -> bool:
    """False for one that was asked, began, and was not chosen."""
    return not chunk.incarnation or _is(placement.instance(chunk.stage), chunk.incarnation)
