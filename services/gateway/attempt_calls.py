"""The calls of one attempt to conductor, prefill and decode. Raises ServiceError; no decisions."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np

from services.gateway.job import Job
from services.gateway.life_events import AskPlacement, CancelAttempt, Stage, StartRun
from shared.messages import subjects
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef, Ok, RequestRef
from shared.messages.conductor import PlaceReply, PlaceRequest
from shared.messages.decode import DecodeRun
from shared.messages.envelope import Message, encode
from shared.messages.prefill import Cancel, PrefillRun, UnplacedRun
from shared.messages.reports import LEASE_S
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import NoResponder, ServiceError

PLACE_TIMEOUT_S = 2.0
"""Twice what a conductor takes at most: one that is stopped holds nobody up for long."""
RUN_TIMEOUT_S = 3.0
CANCEL_TIMEOUT_S = 1.0
CANCEL_TRIES = 5
CANCEL_PAUSE_S = 0.4
"""After a restart of NATS an instance may come back later than we do."""


class AttemptCalls:
    def __init__(
        self, bus: Bus, gateway: str, incarnation: str, *, early_run_tokens: int = 0
    ) -> None:
        """Prompts up to `early_run_tokens` go with the question for a place."""
        self._bus = bus
        self._early_run_tokens = early_run_tokens
        self._gateway = gateway
        self._incarnation = incarnation

    def ref(self, job: Job, attempt: int) -> RequestRef:
        return RequestRef(
            request_id=job.request_id,
            attempt=attempt,
            gateway=self._gateway,
            gateway_incarnation=self._incarnation,
        )

    def place(self, job: Job, ask: AskPlacement) -> Coroutine[Any, Any, PlaceReply]:
        """Ask now where it shall run; to be awaited for the placement, or for the conductor's
        refusal with the numbers it compared."""
        run = self._unplaced_run(job, ask.attempt) if self.goes_along(job, ask) else b""
        asked = self._bus.ask(
            subjects.CONDUCTOR_PLACE,
            self.question(job, ask, run),
            PlaceReply,
            timeout_s=PLACE_TIMEOUT_S,
        )
        return self._placed(asked)

    def goes_along(self, job: Job, ask: AskPlacement) -> bool:
        """Whether the run goes with the question, so that it may begin before we hear where.

        What a loser computes is lost: only short prompts, and only the usual case.
        """
        is_usual = not ask.is_resume and job.prompt_logprobs is None
        return is_usual and job.num_tokens <= self._early_run_tokens

    async def _placed(self, asked: Coroutine[Any, Any, PlaceReply]) -> PlaceReply:
        reply = await asked
        if reply.placement is None and reply.refusal is None:
            raise ServiceError(ErrorCode.INTERNAL, "the conductor answered without a placement")
        return reply

    async def explain(self, job: Job) -> PlaceReply:
        """What the conductor would decide now; nothing is promised."""
        return await self._bus.request(
            subjects.CONDUCTOR_EXPLAIN,
            self.question(job, AskPlacement(0, (), needs_scores=job.prompt_logprobs is not None)),
            PlaceReply,
            timeout_s=PLACE_TIMEOUT_S,
        )

    def question(self, job: Job, ask: AskPlacement, run: bytes = b"") -> PlaceRequest:
        now_s = monotonic_s()
        return PlaceRequest(
            ref=self.ref(job, ask.attempt),
            model=job.model,
            num_tokens=job.num_tokens,
            max_tokens=job.sampling.max_tokens,
            chain=job.chain,
            cache=job.cache_mode(needs_scores=ask.needs_scores),
            exclude=list(ask.exclude),
            prefill=job.prefill,
            decode=job.decode,
            policy=job.policy,
            remaining_ms=job.remaining_ms(now_s),
            ttft_slo_ms=None if ask.is_resume else job.ttft_left_ms(now_s),
            tbt_slo_ms=job.tbt_slo_ms,
            priority=job.priority,
            run=run,
            traceparent=job.traceparent,
        )

    def run(self, job: Job, start: StartRun, stage: Stage) -> Coroutine[Any, Any, Ok] | None:
        """Send the run to one stage now; that has taken it when what this returns was awaited.

        None: no instance is placed for it, or the run is there already."""
        instance = start.placement.instance(stage)
        if instance is None or (stage == "prefill" and start.placement.is_started):
            return None
        message: Message
        if stage == "prefill":
            message = self._prefill_run(job, start)
        else:
            message = self._decode_run(job, start, instance)
        subject = subjects.instance(stage, instance.id, "run")
        return self._bus.ask(subject, message, Ok, timeout_s=RUN_TIMEOUT_S)

    async def cancel(self, job: Job, effect: CancelAttempt) -> None:
        """Tell both stages; one that does not answer drops the work by its own rules."""
        message = Cancel(ref=self.ref(job, effect.attempt), traceparent=job.traceparent)
        await asyncio.gather(
            self._cancel_one("prefill", effect.prefill, message),
            self._cancel_one("decode", effect.decode, message),
        )

    async def _cancel_one(
        self, stage: Stage, instance: InstanceRef | None, message: Cancel
    ) -> None:
        if instance is None:
            return
        subject = subjects.instance(stage, instance.id, "cancel")
        for _ in range(CANCEL_TRIES):
            try:
                await self._bus.request(subject, message, Ok, timeout_s=CANCEL_TIMEOUT_S)
                return
            except ServiceError as error:
                if isinstance(error, NoResponder) and not self._bus.was_cut_off_within(LEASE_S):
                    return
                await asyncio.sleep(CANCEL_PAUSE_S)

    def _unplaced_run(self, job: Job, attempt: int) -> bytes:
        return encode(
            UnplacedRun(
                model=job.model,
                tokens=job.packed_tokens,
                sampling=job.sampling,
                reply_subject=self._reply_subject(job, attempt),
                namespace=job.namespace,
            )
        )

    def _prefill_run(self, job: Job, start: StartRun) -> PrefillRun:
        placement = start.placement
        return PrefillRun(
            ref=self.ref(job, start.attempt),
            incarnation=placement.prefill.incarnation,
            model=job.model,
            tokens=job.packed_tokens,
            chain=job.chain,
            sampling=job.sampling,
            decode=placement.decode,
            source=placement.source,
            cache=job.cache_mode(needs_scores=start.needs_scores),
            prompt_logprobs=job.prompt_logprobs if start.needs_scores else None,
            reply_subject=self._reply_subject(job, start.attempt),
            remaining_ms=job.remaining_ms(monotonic_s()),
            is_resume=bool(start.given),
            namespace=job.namespace,
            traceparent=job.traceparent,
        )

    def _decode_run(self, job: Job, start: StartRun, decode: InstanceRef) -> DecodeRun:
        placement = start.placement
        return DecodeRun(
            ref=self.ref(job, start.attempt),
            incarnation=decode.incarnation,
            model=job.model,
            num_tokens=job.num_tokens,
            chain=job.chain,
            sampling=job.sampling,
            prefill=placement.prefill,
            source=placement.decode_source,
            cache=job.cache,
            given_tokens=np.asarray(start.given, dtype="<i4").tobytes(),
            reply_subject=self._reply_subject(job, start.attempt),
            remaining_ms=job.remaining_ms(monotonic_s()),
            traceparent=job.traceparent,
        )

    def _reply_subject(self, job: Job, attempt: int) -> str:
        return subjects.gateway_tokens(self._gateway, job.request_id, attempt)


def refusal_of(reply: PlaceReply) -> ErrorInfo:
    """The refusal in `reply` with what was predicted and what was allowed."""
    assert reply.refusal is not None
    return reply.refusal.model_copy(update={"targets": reply.targets})
