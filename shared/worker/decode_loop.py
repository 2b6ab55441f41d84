"""The decode role: promises of device cache, each request's way into the batch, its tokens out."""

import asyncio
import logging
from functools import partial
from typing import Literal

from shared.engine.decode import DecodeEngine
from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorCode, ErrorInfo, Ok
from shared.messages.decode import DecodeRun, Handoff, HandoffReply, KvReady
from shared.messages.pool import AllocateReply
from shared.messages.prefill import Cancel, Reserve, ReserveReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.worker.attempts import Attempts
from shared.worker.checks import check_decode_run, check_reserve
from shared.worker.decode_batch import DecodeBatch, Sequence
from shared.worker.decode_job import DecodeJob
from shared.worker.early_hints import EarlyHints
from shared.worker.kv_intake import KvIntake
from shared.worker.parts import Load, WorkerParts, not_reserved, pool_lost
from shared.worker.pool_session import PoolSession
from shared.worker.prefix import hold_prefix
from shared.worker.promises import Limits, Promise, Promises
from shared.worker.slot_wait import allocate_when_free

log = logging.getLogger("moonpool.worker")
CLEAN_UP_TIMEOUT_S = 1.0
RUN_WAIT_S = 1.0
"""How long a hand-over waits for the run that should have come before it."""
OUTCOME_TIMEOUT_S = 60.0


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
        self._engine = DecodeEngine(parts.loaded.model, parts.loaded.layout, settings.decode_tokens)
        self._batch = DecodeBatch(
            self._engine,
            parts.compute,
            parts.loaded.config.eos_token_ids,
            parts.context_tokens,
        )
        self._session: PoolSession | None = None
        self._slot_line = asyncio.Lock()
        self._run_came = asyncio.Event()

    # --- the instance's side ----------------------------------------------------------------

    def start(self) -> None:
        self._parts.context.tasks.start_soon(self._batch.run(), name="decode batch")

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
            log.info("%s: its run did not come in time", promise.handle)
        self._early.expire(now_s)

    def load(self) -> Load:
        return Load(
            queued_requests=len(self._promises) - len(self._batch),
            running=len(self._batch),
            free_tokens=self._promises.free_tokens,
            capacity_tokens=self._limits.max_tokens,
            context_in_batch_tokens=self._batch.context_tokens,
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
        num_tokens = self._room(message.num_tokens, message.max_tokens)
        num_blocks = self._parts.grid.num_blocks(message.num_tokens)
        if self._parts.context.state != "ready" or self._session is None:
            reason = f"the instance is {self._parts.context.state}"
        elif running is not None:
            reason = "an attempt of this name is still being cleaned up"
        else:
            reason = self._promises.refusal(handle, num_tokens, num_blocks)
        if reason:
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
        if not self._promises.extend(handle):
            raise not_reserved(handle)
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

    async def handoff(self, message: Handoff) -> HandoffReply:
        """Answered when all KV is in the device cache; repeated ones get the same answer."""
        handle = message.ref.handle
        job = await self._expected(handle)
        if job is None:
            if self.attempts.has_finished(handle):
                return HandoffReply()
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

    def _room(self, num_tokens: int, max_tokens: int) -> int:
        return min(num_tokens + max_tokens, self._parts.context_tokens)

    # --- one request ------------------------------------------------------------------------

    async def _attend(self, job: DecodeJob) -> None:
        await job.attend(
            lambda: self._work(job), lambda: self._clean_up(job), lambda e: self._tell(job, e)
        )

    async def _work(self, job: DecodeJob) -> None:
        if job.is_same_node:
            handoff, moved = await self._read_in_place(job)
        else:
            handoff, moved = await self._bring_here(job)
        self.attempts.unwatch(job, job.prefill)
        await self._release(job)
        answer = job.given_tokens or [handoff.first_token]
        sequence = Sequence(job.handle, job.run.num_tokens, job.run.sampling, answer, job.sender)
        self._batch.join(sequence)
        job.reply = moved
        job.settled.set()
        self._parts.poke()
        await sequence.ended.wait()
        if sequence.failure is not None:
            raise sequence.failure
        await self._send_last(job, handoff, moved, sequence)

    async def _read_in_place(self, job: DecodeJob) -> tuple[Handoff, HandoffReply]:
        """Prefill is on this node: its slots are read where they are."""
        handoff = await job.wait_handoff()
        if handoff.node != job.session.node:
            raise ServiceError(
                ErrorCode.KV_LOST,
                f"the KV is in another incarnation of node {handoff.node.id}",
                is_retryable=True,
            )
        slots = [block.slot for block in handoff.blocks]
        await self._load(job, slots, [block.generation for block in handoff.blocks])
        return handoff, HandoffReply()

    async def _bring_here(self, job: DecodeJob) -> tuple[Handoff, HandoffReply]:
        """Prefill is elsewhere: what the own pool has not is pulled while prefill computes."""
        run, pool = job.run, job.session.client
        chain = run.chain if run.cache == "on" else b""
        prefix = await hold_prefix(pool, job.ref, chain, run.source, job.remaining_s)
        num_own = self._parts.grid.num_blocks(run.num_tokens) - prefix.num_blocks
        own = AllocateReply(slots=[], generations=[])
        if num_own:
            async with self._slot_line:
                own = await allocate_when_free(pool, job.handle, num_own)
        num_layers = self._parts.loaded.config.num_layers
        intake = KvIntake(pool, run, self._parts.grid, num_layers, prefix, own)
        while (hints := await job.next_hints()) is not None:
            await intake.pull_hinted(hints)
        handoff = await job.wait_handoff()
        blocks = await intake.complete(handoff)
        await self._load(job, blocks.slots, blocks.generations)
        moved_bytes = intake.moved_bytes + prefix.fetched_bytes
        return handoff, HandoffReply(
            streamed_bytes=moved_bytes, stream_s=intake.seconds + prefix.fetch_s
        )

    async def _load(self, job: DecodeJob, slots: list[int], generations: list[int]) -> None:
        """Into the device cache, block by block, so that steps of the batch come between."""
        engine, grid, compute = self._engine, self._parts.grid, self._parts.compute
        pool, num_tokens = job.session.slots, job.run.num_tokens
        room = self._room(num_tokens, job.run.sampling.max_tokens)

        def add() -> None:
            engine.add(job.handle, room)
            job.is_in_engine = True

        def load(index: int) -> None:
            valid_tokens = grid.valid_tokens(index, num_tokens)
            engine.load_block(
                job.handle, pool, slots[index], index * grid.block_tokens, valid_tokens
            )

        if len(slots) != grid.num_blocks(num_tokens):
            raise ServiceError(
                ErrorCode.KV_LOST,
                f"the hand-over names {len(slots)} blocks of {grid.num_blocks(num_tokens)}",
                is_retryable=True,
            )
        await compute.run(add)
        for index in range(len(slots)):
            await compute.run(partial(load, index))
        if not job.session.client.generations_hold(slots, generations):
            raise ServiceError(
                ErrorCode.KV_LOST, "blocks changed while they were loaded", is_retryable=True
            )

    async def _send_last(
        self, job: DecodeJob, handoff: Handoff, moved: HandoffReply, sequence: Sequence
    ) -> None:
        joined_s = sequence.token_times_s[0]
        reuse: Reuse = handoff.reuse.model_copy(
            update={"streamed_bytes": moved.streamed_bytes, "stream_s": moved.stream_s}
        )
        await job.sender.send(
            sequence.unsent,
            finish_reason=sequence.finish,
            times=Times(handoff_s=joined_s - job.handoff_s),
            reuse=reuse,
        )

    # --- ending -----------------------------------------------------------------------------

    async def _clean_up(self, job: DecodeJob) -> None:
        self._batch.leave(job.handle)
        job.settled.set()
        await self._release(job)
        await self._parts.compute.run(lambda: self._leave_engine(job))
        self._promises.end(job.handle)
        self._parts.poke()

    async def _release(self, job: DecodeJob) -> None:
        try:
            await job.session.client.release(job.handle)
        except ServiceError as error:
            log.debug("%s: released with its pool: %s", job.handle, error)

    def _leave_engine(self, job: DecodeJob) -> None:
        if job.is_in_engine:
            self._engine.remove(job.handle)
            job.is_in_engine = False

    async def _tell(self, job: DecodeJob, error: ErrorInfo) -> None:
        await job.sender.send(error=error)
