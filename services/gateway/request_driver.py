"""Drives one RequestLife: its effects onto the bus, the bus and the clock back as events.

No rule is decided here. Events are handled at once on the loop, so that there is no queue that
could overflow; what a client gets is bounded by the length of the answer.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from services.gateway.attempt_calls import AttemptCalls, refusal_of
from services.gateway.instance_watch import InstanceWatch
from services.gateway.job import Job
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
    Placed,
    PlacementRefused,
    PrefillDone,
    RunFailed,
    Stage,
    StageReported,
    StartRun,
    TimePassed,
)
from services.gateway.request_life import RequestLife
from services.gateway.request_record import RequestRecord
from services.gateway.request_trace import RequestTrace
from services.gateway.token_inbox import TokenInbox
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef, Ok
from shared.messages.conductor import PlaceReply
from shared.messages.tokens import TokenChunk
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import NoResponder, ServiceError
from shared.runtime.outcome_reporter import OutcomeReporter
from shared.runtime.tasks import Tasks
from shared.telemetry import about

Output = GivePrompt | GiveTokens | Finish | Fail


@dataclass(frozen=True, slots=True)
class DriverParts:
    """What all drivers of a gateway share."""

    tasks: Tasks
    calls: AttemptCalls
    inbox: TokenInbox
    watch: InstanceWatch
    outcomes: OutcomeReporter
    on_lost: Callable[[str], None]
    """Told the handle of an attempt that may run although its place was not heard of."""


class RequestDriver:
    """Owns the timer and the holds of one request; `emit` is called with what its client gets."""

    def __init__(
        self,
        parts: DriverParts,
        job: Job,
        life: RequestLife,
        record: RequestRecord,
        trace: RequestTrace,
        emit: Callable[[Output], None],
    ) -> None:
        self._parts = parts
        self._job = job
        self._life = life
        self._record = record
        self._trace = trace
        self._holds: dict[Stage, InstanceRef] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._emit = emit

    def start(self) -> None:
        self._parts.inbox.open(self._job.request_id, self._on_chunk)
        self._perform(self._life.start(monotonic_s()))

    def post(self, event: Event) -> None:
        """Something happened; its effects begin before this returns."""
        self._perform(self._life.on_event(event, monotonic_s()))

    def abandon(self, code: ErrorCode, message: str) -> None:
        """Nobody waits for the answer: cancel what runs. Nothing when it has ended."""
        self.post(Abandoned(ErrorInfo(code=code, message=message)))

    def _on_chunk(self, chunk: TokenChunk) -> None:
        self.post(ChunkArrived(chunk))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)
        self._set_timer()

    async def _own(self, work: Coroutine[Any, Any, None]) -> None:
        """What happened may have been said in another task than the request's."""
        about.work_for(self._job.request_id, self._job.traceparent)
        await work

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self._parts.tasks.start_contained(self._own(work), name=name)

    def _perform_one(self, effect: Effect) -> None:
        start = self._start
        match effect:
            case AskPlacement():
                self._trace.say("place", attempt=effect.attempt, exclude=effect.exclude)
                asked = self._parts.calls.place(self._job, effect)
                start(self._place(effect, asked), name=f"place {self._job.request_id}")
            case StartRun(placement=placement):
                self._record.note_placement(placement)
                if self._trace.is_on:
                    self._trace.say("placed", attempt=effect.attempt, **placement.model_dump())
                self._hold("prefill", placement.prefill)
                if placement.decode is not None:
                    self._hold("decode", placement.decode)
                sent = self._parts.calls.run(self._job, effect, "prefill")
                start(self._run(effect, sent), name=f"run {self._job.request_id}")
            case PrefillDone():
                self._release("prefill")
            case CancelAttempt():
                self._trace.say("cancel", attempt=effect.attempt, reason=effect.reason)
                self._release_all()
                cancel = self._parts.calls.cancel(self._job, effect)
                start(cancel, name=f"cancel {self._job.request_id}")
            case Blame(stage=stage, instance=blamed):
                self._parts.outcomes.note(stage, blamed.id, blamed.incarnation, is_good=False)
            case StageReported():
                self._record.note_stage(effect)
            case GivePrompt():
                self._trace.say("prompt", num=sum(one.num_tokens for one in effect.pieces))
                self._emit(effect)
            case GiveTokens():
                self._trace.say("tokens", first=effect.first_index, num=len(effect.tokens))
                self._emit(effect)
            case Finish() | Fail():
                self._end(effect)

    def _end(self, effect: Finish | Fail) -> None:
        self._release_all()
        self._parts.inbox.close(self._job.request_id)
        self._record.num_attempts = self._life.num_runs
        if isinstance(effect, Fail):
            record = self._record
            record.is_refused_by_decode = effect.is_after_prefill
            details = effect.error.model_dump()
            self._trace.say("failed", **details, wasted_prefill_s=record.wasted_prefill_s)
        else:
            self._trace.say("finished")
        self._emit(effect)

    async def _place(self, effect: AskPlacement, asked: Coroutine[Any, Any, PlaceReply]) -> None:
        try:
            reply = await asked
        except ServiceError as error:
            reply = PlaceReply(refusal=error.info)
            if not isinstance(error, NoResponder):
                self._lost(effect)
        if reply.placement is not None:
            self.post(Placed(effect.attempt, reply.placement))
            await asyncio.sleep(0)  # the run is out before anything else is done
        self._record.note_decision(effect.attempt, reply)
        if reply.placement is None:
            self._refused(effect.attempt, refusal_of(reply))

    def _lost(self, effect: AskPlacement) -> None:
        """Who got the run with its reservation goes on with it, unless it is told."""
        calls = self._parts.calls
        if calls.goes_along(self._job, effect):
            self._parts.on_lost(calls.ref(self._job, effect.attempt).handle)

    def _refused(self, attempt: int, error: ErrorInfo) -> None:
        self._trace.say("refused", attempt=attempt, **error.model_dump())
        self.post(PlacementRefused(attempt, error))

    async def _run(self, effect: StartRun, sent: Coroutine[Any, Any, Ok] | None) -> None:
        """Decode's leaves a turn of the loop after prefill's, which token 0 waits for."""
        await asyncio.sleep(0)
        is_running = self._life.is_running(effect.attempt)
        to_decode = self._parts.calls.run(self._job, effect, "decode") if is_running else None
        await asyncio.gather(
            self._is_taken(effect, "prefill", sent), self._is_taken(effect, "decode", to_decode)
        )

    async def _is_taken(
        self, effect: StartRun, stage: Stage, sent: Coroutine[Any, Any, Ok] | None
    ) -> None:
        try:
            if sent is not None:
                await sent
        except ServiceError as error:
            self.post(RunFailed(effect.attempt, stage, error.info))

    def _hold(self, stage: Stage, instance: InstanceRef) -> None:
        self._release(stage)
        self._holds[stage] = instance
        self._parts.watch.hold(stage, instance, self.post)

    def _release(self, stage: Stage) -> None:
        instance = self._holds.pop(stage, None)
        if instance is not None:
            self._parts.watch.release(stage, instance, self.post)

    def _release_all(self) -> None:
        self._release("prefill")
        self._release("decode")

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._life.next_deadline_s()
        if due_s is not None:
            loop = asyncio.get_running_loop()
            delay_s = max(0.001, due_s - monotonic_s())
            self._timer = loop.call_later(delay_s, self.post, TimePassed())
