"""The prefill role: reservations, the queue of prompts, who is let go. Computes nothing itself."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

from shared.messages.common import InstanceRef, Ok
from shared.messages.prefill import Cancel, PrefillRun, Reserve, ReserveReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.telemetry import about
from shared.worker.attempts import Attempts
from shared.worker.checks import bad, check_prefill_run, check_reserve
from shared.worker.expectations import Expectations
from shared.worker.parts import Load, WorkerParts, not_reserved, pool_lost
from shared.worker.peer_watch import Peer
from shared.worker.pool_session import PoolSession
from shared.worker.prefill_job import PrefillJob
from shared.worker.prefill_pass import PassTools
from shared.worker.prefill_queue import PrefillQueue, Reserved
from shared.worker.prefill_work import PrefillWork
from shared.worker.promises import Limits, Promise, Promises
from shared.worker.reserved_run import run_of
from shared.worker.turns import Turns

log = logging.getLogger("moonpool.worker")
CLEAN_UP_TIMEOUT_S = 1.0


class PrefillLoop:
    """Owns the prompts of one instance."""

    role: Literal["prefill"] = "prefill"
    watched_service: Literal["decode"] = "decode"

    def __init__(self, parts: WorkerParts) -> None:
        settings = parts.context.settings
        self._parts = parts
        self.attempts: Attempts[PrefillJob] = Attempts(parts.context.tasks, parts.watch)
        self._promises = Promises(
            Limits(
                max_requests=settings.max_queue,
                max_tokens=settings.max_queue * parts.context_tokens,
                max_blocks=settings.max_slots,
            )
        )
        self._queue = PrefillQueue(
            settings.tokens_per_s, settings.queue, settings.queue_ageing, parts.grid.grid_tokens
        )
        self._turns = Turns(self._queue)
        tools = PassTools(
            compute=parts.compute,
            grid=parts.grid,
            num_layers=parts.loaded.config.num_layers,
            queue=self._queue,
            turns=self._turns,
            make_room=self._make_room,
        )
        self._expectations = Expectations(
            parts.context.bus,
            parts.grid,
            parts.loaded.kv_format.root(),
            self._instance_of,
            self._queue.work_s,
        )
        self._work = PrefillWork(parts, tools, self._leave_queue, self._expectations.computed)
        self._session: PoolSession | None = None

    # --- the instance's side ----------------------------------------------------------------

    def start(self) -> None:
        self._work.start()
        self._parts.context.tasks.start_soon(self._expectations.run(), name="expectations")

    def open(self, session: PoolSession) -> None:
        """Work on this pool from now on."""
        self._session = session
        self._work.open(session)

    async def give_up_pool(self) -> None:
        """The pool is gone: the queue goes back to the gateways at once."""
        self._session = None
        self.attempts.stop_all(pool_lost())
        await self.attempts.wait_idle()
        self._work.close()

    def expire(self, now_s: float) -> None:
        """Ends reservations whose run did not come in time."""
        for promise in self._promises.expire(now_s):
            extra = promise.about.extra  # found while another request is served
            log.info("%s: its run did not come in time", promise.handle, extra=extra)
            self.attempts.cancel(promise.handle)

    def end_lost(self, gateway: Peer, handles: Sequence[str]) -> None:
        self.attempts.cancel_of(gateway, handles)

    def load(self) -> Load:
        now_s, reserved = monotonic_s(), self._reserved()
        profile = self._queue.profile(reserved, now_s)
        return Load(
            queued_requests=len(self._promises),
            queued_tokens=self._queue.queued_tokens + self._promises.reserved_tokens,
            running=len(self.attempts),
            expected_start_s=self._queue.expected_start_s(reserved, now_s),
            discipline=self._queue.discipline,
            work_by_size_s=profile.work_s,
            prompts_by_size=profile.prompts,
            computed_tokens_total=self._queue.computed_tokens_total,
            compute_s_total=self._queue.compute_s_total,
        )

    # --- messages ---------------------------------------------------------------------------

    async def reserve(self, message: Reserve) -> ReserveReply:
        self._parts.check_addressee(message.incarnation)
        check_reserve(message, self._parts)
        handle = message.ref.handle
        await self.attempts.wait_gone(handle, CLEAN_UP_TIMEOUT_S)
        now_s = monotonic_s()
        self.expire(now_s)
        uncached = max(message.num_tokens - message.cached_tokens, 1)
        newcomer = Reserved(message.num_tokens, uncached)
        expected_start_s = self._queue.expected_start_s(self._reserved(), now_s, newcomer)
        reason = self._refusal(message)
        if reason:
            return ReserveReply(
                is_accepted=False,
                reason=reason,
                expected_start_s=expected_start_s,
                retry_after_s=max(expected_start_s, 0.5),
            )
        job = self.attempts.get(handle)
        if job is None and self._session is not None:
            self._promises.give(
                Promise(
                    handle=handle,
                    gateway=message.ref.gateway,
                    gateway_incarnation=message.ref.gateway_incarnation,
                    num_tokens=uncached,
                    num_blocks=self._parts.grid.num_blocks(message.num_tokens),
                    expires_s=now_s + message.ttl_ms / 1000,
                    about=about.current(),
                )
            )
            self.attempts.forget(handle)
            job = PrefillJob(message, self._session, now_s)
            if message.run:
                self._work.ask_early(job)
            self.attempts.begin(job, self._attend(job), [job.gateway])
            if message.run:
                await asyncio.sleep(0)  # the pool is asked before the run is looked into
                self._take_early(job, message)
            if not job.is_stopped:
                self._expectations.accepted(job, expected_start_s)
            self._parts.poke()
        has_run = job is not None and job.run.done() and job.decode == message.decode
        return ReserveReply(is_accepted=True, expected_start_s=expected_start_s, has_run=has_run)

    async def run(self, message: PrefillRun) -> Ok:
        """Takes the reserved prompt in the queue; a repeated message does nothing."""
        self._parts.check_addressee(message.incarnation)
        handle = message.ref.handle
        job = self.attempts.get(handle)
        if job is None or job.is_stopped:
            if job is None and self.attempts.has_finished(handle):
                return Ok()
            raise not_reserved(handle)
        check_prefill_run(message, job.num_tokens, self._parts)
        if job.chain and message.chain != job.chain:
            raise bad("chain", "is not the one that was reserved")
        if job.run.done():
            self._move(job, message.decode)
            return Ok()
        had_chain = bool(job.chain)
        self._take(job, message)
        if not had_chain:
            self._expectations.accepted(job, self._queue.expected_start_s([], job.run_s))
        self._parts.poke()
        return Ok()

    def _take_early(self, job: PrefillJob, message: Reserve) -> None:
        """Start the run that came with the reservation; a bad one is refused when its gateway
        sends it."""
        run = run_of(message)
        if run is None or job.is_stopped or job.run.done():
            return
        try:
            check_prefill_run(run, job.num_tokens, self._parts)
        except ServiceError as error:
            log.info("%s: the run with its reservation: %s", job.handle, error)
            return
        job.came_early = True
        self._take(job, run)

    def _take(self, job: PrefillJob, run: PrefillRun) -> None:
        """Into the queue: from now on it is work."""
        job.take(run)
        self._promises.extend(job.handle)
        self.attempts.set_deadline(job, run.remaining_ms)
        self._watch_decode(job)
        job.run_s = monotonic_s()
        self._queue.add(job.handle, job.num_tokens, job.expected_uncached, job.run_s, job.due_s)
        job.run.set_result(run)

    def _move(self, job: PrefillJob, decode: InstanceRef | None) -> None:
        """Another decode instance takes it over: the one that it was started for refused."""
        old = job.decode
        if decode is None or old is None or old == decode:
            return
        self.attempts.unwatch(job, Peer("decode", old.id, old.incarnation))
        job.decode = decode
        self._watch_decode(job)
        job.moved.set()

    def _watch_decode(self, job: PrefillJob) -> None:
        decode = job.decode
        if decode is not None and decode.id != self._parts.context.id:
            self.attempts.watch(job, Peer("decode", decode.id, decode.incarnation))

    async def cancel(self, message: Cancel) -> Ok:
        self.attempts.cancel(message.ref.handle)
        return Ok()

    def _reserved(self) -> list[Reserved]:
        """Promised prompts whose run has not come."""
        return [
            Reserved(job.num_tokens, job.expected_uncached)
            for job in self.attempts.all()
            if not job.run.done()
        ]

    def _refusal(self, message: Reserve) -> str:
        if self._parts.context.state != "ready" or self._session is None:
            return f"the instance is {self._parts.context.state}"
        running = self.attempts.get(message.ref.handle)
        if running is not None and running.is_stopped:
            return "an attempt of this name is still being cleaned up"
        num_blocks = self._parts.grid.num_blocks(message.num_tokens)
        if num_blocks > self._session.client.num_slots:
            total = self._session.client.num_slots
            return f"needs {num_blocks} blocks, the pool has {total}"
        if num_blocks > self._session.client.max_slots:
            allowed = self._session.client.max_slots
            return f"needs {num_blocks} blocks, this instance may hold {allowed}"
        return self._promises.refusal(message.ref.handle, message.num_tokens, num_blocks)

    # --- one prompt -------------------------------------------------------------------------

    async def _attend(self, job: PrefillJob) -> None:
        await job.attend(
            lambda: self._work.serve(job),
            lambda: self._clean_up(job),
            lambda error: self._work.tell(job, error),
        )

    async def _make_room(self, taker: PrefillJob) -> None:
        """Prompts that only wait give up what they hold, so that the pool has it for others."""
        for job in self.attempts.all():
            if job is not taker and job.holds_unstarted:
                job.give_up_early()
                await job.session.client.release(job.handle)

    def _instance_of(self, job: PrefillJob) -> InstanceRef:
        context = self._parts.context
        return InstanceRef(id=context.id, incarnation=context.incarnation, node=job.session.node.id)

    def _leave_queue(self, job: PrefillJob) -> None:
        self._queue.remove(job.handle)
        self._turns.changed()
        self._promises.end(job.handle)
        self._parts.poke()

    async def _clean_up(self, job: PrefillJob) -> None:
        self._leave_queue(job)
        self._expectations.ended(job)
        job.give_up_early()
        try:
            await job.session.client.release(job.handle)
        except ServiceError as error:
            log.debug("%s: released with its pool: %s", job.handle, error)
