"""The decode role: promises of device cache, who is expected, who is let go. Computes nothing."""

import asyncio
import logging
from collections.abc import Sequence as SequenceOf
from typing import Literal

from shared.messages.common import Ok
from shared.messages.decode import DecodeRun, Handoff, HandoffReply, Judge, JudgeReply, KvReady
from shared.messages.prefill import Cancel, Reserve, ReserveReply
from shared.runtime.clock import monotonic_s
from shared.telemetry import about
from shared.worker.attempts import Attempts
from shared.worker.checks import TOKEN_BYTES, bad, check_decode_run, check_reserve, check_tokens
from shared.worker.decode_batch import Sequence as InBatch
from shared.worker.decode_job import DecodeJob
from shared.worker.decode_judging import DecodeJudging
from shared.worker.decode_work import DecodeWork
from shared.worker.early_hints import EarlyHints
from shared.worker.parts import Load, WorkerParts, not_reserved, pool_lost
from shared.worker.peer_watch import Peer
from shared.worker.pool_session import PoolSession
from shared.worker.promises import Limits, Promise, Promises

log = logging.getLogger("moonpool.worker")
CLEAN_UP_TIMEOUT_S = 1.0
RUN_WAIT_S = 1.0
"""How long a hand-over waits for the run that should have come before it."""
OUTCOME_TIMEOUT_S = 1.5
"""A hand-over is answered at the latest then, and asked again: an answer may get lost."""


class DecodeLoop:
    """Owns the requests of one instance and its device cache."""

    role: Literal["decode"] = "decode"
    watched_service: Literal["prefill"] = "prefill"

    def __init__(self, parts: WorkerParts) -> None:
        settings = parts.context.settings
        self._parts = parts
        self.attempts: Attempts[DecodeJob] = Attempts(parts.context.tasks, parts.watch)
        self._limits = Limits(
            max_requests=settings.max_batch,
            max_tokens=settings.decode_tokens,
            max_blocks=settings.max_slots,
        )
        self._promises = Promises(self._limits)
        self._early: EarlyHints[KvReady] = EarlyHints()
        self._work = DecodeWork(parts, self._on_arrived, self._on_through, self._promises.raise_to)
        self._judging = DecodeJudging(settings, self._work.batch, self._promises)
        self._session: PoolSession | None = None
        self._run_came = asyncio.Event()

    # --- the instance's side ----------------------------------------------------------------

    def start(self) -> None:
        self._parts.context.tasks.start_soon(self._work.batch.run(), name="decode batch")

    def open(self, session: PoolSession) -> None:
        """Work on this pool from now on."""
        self._session = session

    async def give_up_pool(self) -> None:
        """Requests whose KV is not all here fail; the others finish from the device cache."""
        self._session = None
        for job in self.attempts.all():
            if job.reply is None:
                job.stop(pool_lost())
        await self.attempts.wait_idle()

    def expire(self, now_s: float) -> None:
        """Ends reservations whose run did not come in time, and hints of nobody."""
        for promise in self._promises.expire(now_s):
            extra = promise.about.extra  # found while another request is served
            log.info("%s: its run did not come in time", promise.handle, extra=extra)
        self._early.expire(now_s)

    def end_lost(self, gateway: Peer, handles: SequenceOf[str]) -> None:
        """Of attempts, and of promises: no run will come, and others want the room."""
        self.attempts.cancel_of(gateway, handles)
        if self._promises.end_reservations(gateway.id, gateway.incarnation, handles):
            self._parts.poke()

    def load(self) -> Load:
        return Load(
            queued_requests=len(self._promises) - len(self._work.batch),
            running=len(self._work.batch),
            free_tokens=self._promises.free_tokens,
            capacity_tokens=self._limits.max_tokens,
            context_in_batch_tokens=self._work.batch.context_tokens,
            admit_tokens=self._parts.context.settings.admit_tokens,
            preempted=self._work.cache.num_outside,
            saved_tokens=self._work.cache.saved_tokens,
            preemptions_total=self._work.cache.preemptions_total,
            computed_tokens_total=self._work.batch.tokens_total,
            compute_s_total=self._work.batch.compute_s_total,
            steps_total=self._work.batch.steps_total,
            refused_total=self._judging.refused_total,
        )

    # --- messages ---------------------------------------------------------------------------

    async def reserve(self, message: Reserve) -> ReserveReply:
        self._parts.check_addressee(message.incarnation)
        check_reserve(message, self._parts)
        handle = message.ref.handle
        await self.attempts.wait_gone(handle, CLEAN_UP_TIMEOUT_S)
        now_s = monotonic_s()
        self.expire(now_s)
        running = self.attempts.get(handle)
        if running is not None and not running.is_stopped:
            return ReserveReply(is_accepted=True)
        limit_tokens = self._parts.room(message.num_tokens, message.max_tokens)
        num_tokens = self._needed_soon(message.num_tokens, message.max_tokens)
        num_blocks = self._parts.grid.num_blocks(message.num_tokens)
        if self._parts.context.state != "ready" or self._session is None:
            reason = f"the instance is {self._parts.context.state}"
        elif running is not None:
            reason = "an attempt of this name is still being cleaned up"
        elif num_blocks > self._session.client.max_slots:
            allowed = self._session.client.max_slots
            reason = f"needs {num_blocks} blocks, this instance may hold {allowed}"
        elif limit_tokens > self._limits.max_tokens:
            capacity = self._limits.max_tokens
            reason = f"may need room for {limit_tokens} tokens, there is {capacity} in all"
        else:
            reason = self._promises.refusal(handle, num_tokens, num_blocks)
        if reason:
            if running is None and handle not in self._promises:
                self.attempts.cancel(handle)  # a prefill that began for us hears so at once
            return ReserveReply(is_accepted=False, reason=reason, retry_after_s=1.0)
        self.attempts.forget(handle)
        self._promises.give(
            Promise(
                handle=handle,
                gateway=message.ref.gateway,
                gateway_incarnation=message.ref.gateway_incarnation,
                num_tokens=num_tokens,
                num_blocks=num_blocks,
                expires_s=now_s + message.ttl_ms / 1000,
                about=about.current(),
            )
        )
        self._parts.poke()
        return ReserveReply(is_accepted=True)

    async def run(self, message: DecodeRun) -> Ok:
        """Expect the request's KV from now on; a repeated message does nothing."""
        self._parts.check_addressee(message.incarnation)
        handle = message.ref.handle
        if self.attempts.get(handle) is not None or self.attempts.has_finished(handle):
            return Ok()
        check_decode_run(message, self._parts)
        if self._session is None:
            raise pool_lost()
        if handle not in self._promises:
            raise not_reserved(handle)
        self._count_given(message)  # before it: a promise that was extended ends with its attempt
        self._promises.extend(handle)
        job = DecodeJob(message, self._session, self._parts.context.bus)
        for hint in self._early.take(handle):
            job.hint(hint)
        peers = [job.gateway]
        if message.prefill.id != self._parts.context.id:
            peers.append(job.prefill)
        self.attempts.begin(job, self._attend(job), peers)
        self.attempts.set_deadline(job, message.remaining_ms)
        self._run_came.set()
        return Ok()

    def kv_ready(self, message: KvReady) -> None:
        job = self.attempts.get(message.ref.handle)
        if job is not None:
            job.hint(message)
        elif not self.attempts.has_ended(message.ref.handle):
            self._early.keep(message.ref.handle, message, monotonic_s())

    async def judge(self, message: Judge) -> JudgeReply:
        """Before token 0: whether the request may join. One that may not ends by its cancel."""
        job = await self._expected(message.ref.handle)
        if job is None or job.is_stopped:
            raise not_reserved(message.ref.handle)
        return self._judging.judge(job, self.attempts.all(), message.allowed_tbt_ms / 1e3)

    async def handoff(self, message: Handoff) -> HandoffReply:
        """Answered when all KV is in the device cache; repeated ones get the same answer."""
        check_tokens("seen_tokens", message.seen_tokens, self._parts)
        handle = message.ref.handle
        job = await self._expected(handle)
        if job is None:
            if self.attempts.has_finished(handle):
                return HandoffReply()
            raise not_reserved(handle)
        if not job.is_from_prefill(message):
            raise not_reserved(handle)
        job.offer(message)
        return await job.outcome(OUTCOME_TIMEOUT_S)

    async def cancel(self, message: Cancel) -> Ok:
        handle = message.ref.handle
        if self.attempts.get(handle) is None:
            self._promises.end(handle)
        self.attempts.cancel(handle)
        self._early.take(handle)
        return Ok()

    def _needed_soon(self, num_tokens: int, max_tokens: int) -> int:
        """Room that counts when a request is admitted: most answers end long before their limit.

        Those that do not put the youngest out of the device cache for a while.
        """
        admit_tokens = self._parts.context.settings.admit_tokens
        return self._parts.room(num_tokens, min(max_tokens, admit_tokens))

    def _count_given(self, message: DecodeRun) -> None:
        """The reservation did not know of the tokens that are given already."""
        num_given = len(message.given_tokens) // TOKEN_BYTES
        max_tokens = message.sampling.max_tokens
        if self._parts.room(message.num_tokens, max_tokens) > self._limits.max_tokens:
            raise bad("sampling.max_tokens", f"{max_tokens} is more than was reserved")
        room = self._needed_soon(message.num_tokens + num_given, max(max_tokens - num_given, 0))
        self._promises.raise_to(message.ref.handle, room)

    async def _expected(self, handle: str) -> DecodeJob | None:
        """The job of a hand-over; its run may be a little later than the hand-over."""
        deadline_s = monotonic_s() + RUN_WAIT_S
        while self.attempts.get(handle) is None and not self.attempts.has_ended(handle):
            self._run_came.clear()
            try:
                async with asyncio.timeout(max(deadline_s - monotonic_s(), 0.0)):
                    await self._run_came.wait()
            except TimeoutError:
                break
        return self.attempts.get(handle)

    # --- one request ------------------------------------------------------------------------

    async def _attend(self, job: DecodeJob) -> None:
        await job.attend(
            lambda: self._work.serve(job),
            lambda: self._clean_up(job),
            lambda error: self._work.tell(job, error),
        )

    def _on_arrived(self, job: DecodeJob) -> None:
        """All its KV is in the device cache: prefill is not needed any more."""
        self.attempts.unwatch(job, job.prefill)
        self._parts.poke()

    def _on_through(self, job: DecodeJob, sequence: InBatch) -> None:
        job.is_through = True
        self._judging.ended(job, sequence)

    async def _clean_up(self, job: DecodeJob) -> None:
        await self._work.clean_up(job)
        self._promises.end(job.handle)
        self._parts.poke()
