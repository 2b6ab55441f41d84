"""The prefill role: reservations, the queue of prompts, and each prompt's way to its hand-over."""

import logging
from typing import Literal

import numpy as np
import numpy.typing as npt

from shared.engine.prefill import PrefillEngine
from shared.kv import block_keys
from shared.messages import subjects
from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorCode, ErrorInfo, Ok
from shared.messages.decode import Handoff, KvBlock
from shared.messages.prefill import Cancel, PrefillRun, Reserve, ReserveReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.worker.announcer import KvAnnouncer
from shared.worker.attempts import Attempts
from shared.worker.checks import bad, check_prefill_run, check_reserve
from shared.worker.handover import hand_over
from shared.worker.parts import Load, WorkerParts, not_reserved, pool_lost
from shared.worker.peer_watch import Peer
from shared.worker.pool_session import PoolSession
from shared.worker.prefill_job import PrefillJob
from shared.worker.prefill_pass import Computed, PassTools, PrefillPass, StaleBlocksError
from shared.worker.prefill_queue import PrefillQueue
from shared.worker.prefix import Prefix, hold_prefix
from shared.worker.promises import Limits, Promise, Promises
from shared.worker.sampling import finish_reason, params_of
from shared.worker.token_sender import TokenSender
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
        self._bus = parts.context.bus
        self.attempts: Attempts[PrefillJob] = Attempts(parts.context.tasks, parts.watch)
        self._promises = Promises(
            Limits(
                max_requests=settings.max_queue,
                max_tokens=settings.max_queue * parts.context_tokens,
                max_blocks=settings.max_slots,
            )
        )
        self._queue = PrefillQueue(settings.tokens_per_s)
        self._announcer = KvAnnouncer(self._bus)
        self._tools = PassTools(
            compute=parts.compute,
            grid=parts.grid,
            num_layers=parts.loaded.config.num_layers,
            queue=self._queue,
            turns=Turns(self._queue),
            make_room=self._make_room,
        )
        self._session: PoolSession | None = None
        self._engine: PrefillEngine | None = None

    # --- the instance's side ----------------------------------------------------------------

    def start(self) -> None:
        self._parts.context.tasks.start_soon(self._announcer.run(), name="kv announcer")

    def open(self, session: PoolSession) -> None:
        """Work on this pool from now on."""
        self._session = session
        self._engine = PrefillEngine(
            self._parts.loaded.model, session.slots, self._parts.loaded.layout
        )

    async def give_up_pool(self) -> None:
        """The pool is gone: the queue goes back to the gateways at once."""
        self._session = None
        self.attempts.stop_all(pool_lost())
        await self.attempts.wait_idle()
        self._engine = None

    def expire(self, now_s: float) -> None:
        """Ends reservations whose run did not come in time."""
        for promise in self._promises.expire(now_s):
            log.info("%s: its run did not come in time", promise.handle)
            self.attempts.cancel(promise.handle)

    def load(self) -> Load:
        reserved_tokens = self._promises.reserved_tokens
        return Load(
            queued_requests=len(self._promises),
            queued_tokens=self._queue.queued_tokens + reserved_tokens,
            running=len(self.attempts),
            expected_start_s=self._queue.expected_start_s(reserved_tokens),
        )

    # --- messages ---------------------------------------------------------------------------

    async def reserve(self, message: Reserve) -> ReserveReply:
        self._parts.check_addressee(message.incarnation)
        check_reserve(message, self._parts)
        handle = message.ref.handle
        await self.attempts.wait_gone(handle, CLEAN_UP_TIMEOUT_S)
        now_s = monotonic_s()
        self.expire(now_s)
        expected_start_s = self._queue.expected_start_s(self._promises.reserved_tokens)
        reason = self._refusal(message)
        if reason:
            return ReserveReply(
                is_accepted=False,
                reason=reason,
                expected_start_s=expected_start_s,
                retry_after_s=max(expected_start_s, 0.5),
            )
        if self.attempts.get(handle) is None and self._session is not None:
            uncached = max(message.num_tokens - message.cached_tokens, 1)
            self._promises.give(
                Promise(
                    handle=handle,
                    gateway=message.ref.gateway,
                    gateway_incarnation=message.ref.gateway_incarnation,
                    num_tokens=uncached,
                    num_blocks=self._parts.grid.num_blocks(message.num_tokens),
                    expires_s=now_s + message.ttl_ms / 1000,
                )
            )
            self.attempts.forget(handle)
            job = PrefillJob(message, self._session)
            self.attempts.begin(job, self._attend(job), [job.gateway])
            self._parts.poke()
        return ReserveReply(is_accepted=True, expected_start_s=expected_start_s)

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
            return Ok()
        job.take(message)
        self._promises.extend(handle)
        self.attempts.set_deadline(job, message.remaining_ms)
        if message.decode.id != self._parts.context.id:
            decode = message.decode
            self.attempts.watch(job, Peer("decode", decode.id, decode.incarnation))
        self._queue.add(handle, max(job.num_tokens - job.expected_cached_tokens, 1))
        job.run_s = monotonic_s()
        job.run.set_result(message)
        self._parts.poke()
        return Ok()

    async def cancel(self, message: Cancel) -> Ok:
        self.attempts.cancel(message.ref.handle)
        return Ok()

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
        return self._promises.refusal(message.ref.handle, message.num_tokens, num_blocks)

    # --- one prompt -------------------------------------------------------------------------

    async def _attend(self, job: PrefillJob) -> None:
        await job.attend(
            lambda: self._work(job), lambda: self._clean_up(job), lambda e: self._tell(job, e)
        )

    async def _work(self, job: PrefillJob) -> None:
        await self._hold(job)
        run = await job.run
        num_hit = self._hit_tokens(job, await self._hold(job))
        self._queue.loaded(job.handle, job.num_tokens - num_hit)
        self._tools.turns.changed()
        computed = await self._compute(job, run)
        self._leave_queue(job)
        times = Times(
            queue_s=computed.queue_s, load_s=computed.prefix.load_s, compute_s=computed.compute_s
        )
        reuse = self._reuse(job, computed)
        if not run.is_resume and await self._send_first(job, run, computed, times, reuse):
            return
        handoff = Handoff(
            ref=job.ref,
            node=job.session.node,
            blocks=computed.blocks,
            first_token=computed.first_token,
            times=times,
            reuse=reuse,
        )
        await hand_over(self._bus, job, run.decode, handoff)

    async def _hold(self, job: PrefillJob) -> Prefix:
        """The cached prefix: fetched when reserved, held again when it was given up."""
        if job.prefix is None:
            chain = b""
            if job.cache == "on":
                max_blocks = self._parts.grid.max_hit_blocks(job.num_tokens)
                chain = block_keys.take(job.chain, max_blocks)
            job.prefix = await hold_prefix(
                job.session.client, job.ref, chain, job.source, job.remaining_s
            )
        return job.prefix

    async def _compute(self, job: PrefillJob, run: PrefillRun) -> Computed:
        """A pass whose blocks did not hold is thrown away; the next one trusts no cache."""
        tokens = np.frombuffer(run.tokens, dtype="<i4").astype(np.int32, copy=False)
        for _ in range(2):
            try:
                return await self._new_pass(job, run, tokens).compute(lambda: self._hold(job))
            except StaleBlocksError:
                log.warning("%s: blocks changed while they were read, computing anew", job.handle)
                await job.session.client.release(job.handle)
                job.prefix = Prefix()
        raise ServiceError(
            ErrorCode.KV_LOST, "the prompt's blocks changed while it ran", is_retryable=True
        )

    def _new_pass(
        self, job: PrefillJob, run: PrefillRun, tokens: npt.NDArray[np.int32]
    ) -> PrefillPass:
        if self._engine is None:
            raise pool_lost()
        node = job.session.node

        def on_layers(blocks: list[KvBlock], layers: tuple[int, int]) -> None:
            if run.decode.node != node.id:
                self._announcer.announce(run.decode, job.ref, node, blocks, layers)

        return PrefillPass(
            self._tools, self._engine, job, tokens, params_of(run.sampling), on_layers
        )

    async def _send_first(
        self, job: PrefillJob, run: PrefillRun, computed: Computed, times: Times, reuse: Reuse
    ) -> bool:
        """Token 0 to the gateway. True when the answer ends with it: decode is let go."""
        finish = finish_reason(
            run.sampling,
            self._parts.loaded.config.eos_token_ids,
            token=computed.first_token,
            num_given=1,
            num_tokens=job.num_tokens,
            context_tokens=self._parts.context_tokens,
        )
        job.sender = TokenSender(self._bus, job.ref, "prefill", run.reply_subject)
        await job.sender.send(
            [computed.first_token], finish_reason=finish, times=times, reuse=reuse
        )
        if finish is not None:
            subject = subjects.instance("decode", run.decode.id, "cancel")
            await self._bus.publish(subject, Cancel(ref=job.ref))
        return finish is not None

    def _hit_tokens(self, job: PrefillJob, prefix: Prefix) -> int:
        grid = self._parts.grid
        return grid.hit_blocks(prefix.num_blocks, job.num_tokens) * grid.block_tokens

    def _reuse(self, job: PrefillJob, computed: Computed) -> Reuse:
        prefix = computed.prefix
        local_blocks = min(prefix.num_local, computed.hit_blocks)
        block_tokens = self._parts.grid.block_tokens
        return Reuse(
            prompt_tokens=job.num_tokens,
            local_tokens=local_blocks * block_tokens,
            remote_tokens=(computed.hit_blocks - local_blocks) * block_tokens,
            fetched_bytes=prefix.fetched_bytes,
            fetch_s=prefix.fetch_s,
            transport=prefix.transport,
        )

    # --- making room, ending ----------------------------------------------------------------

    async def _make_room(self, taker: PrefillJob) -> None:
        """Prompts that only wait give up their held prefixes, so that the pool can evict them."""
        for job in self.attempts.all():
            if job is not taker and not job.has_slots and job.prefix is not None:
                job.prefix = None
                await job.session.client.release(job.handle)

    def _leave_queue(self, job: PrefillJob) -> None:
        self._queue.remove(job.handle)
        self._tools.turns.changed()
        self._promises.end(job.handle)
        self._parts.poke()

    async def _clean_up(self, job: PrefillJob) -> None:
        self._leave_queue(job)
        try:
            await job.session.client.release(job.handle)
        except ServiceError as error:
            log.debug("%s: released with its pool: %s", job.handle, error)

    async def _tell(self, job: PrefillJob, error: ErrorInfo) -> None:
        if job.run.done() and not job.run.cancelled():
            run = job.run.result()
            sender = job.sender or TokenSender(self._bus, job.ref, "prefill", run.reply_subject)
            await sender.send(error=error)
