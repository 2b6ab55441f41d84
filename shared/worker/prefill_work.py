"""One prompt's way: prefix, computation, token 0, hand-over. Knows nothing of other prompts."""

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shared.engine.engines import prefill_engine
from shared.engine.prefill import PrefillEngine
from shared.messages import subjects
from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef
from shared.messages.decode import Handoff, KvBlock
from shared.messages.prefill import Cancel, PrefillRun
from shared.messages.tokens import FinishReason
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.unless import unless
from shared.telemetry import tracing
from shared.worker.announcer import Hints, KvAnnouncer
from shared.worker.early_taking import EarlyTaking
from shared.worker.handover import asks_to_join, hand_over
from shared.worker.parts import WorkerParts, pool_lost
from shared.worker.pool_session import PoolSession
from shared.worker.prefill_job import PrefillJob
from shared.worker.prefill_pass import (
    Computed,
    OnLayers,
    PassEvents,
    PassTools,
    PrefillPass,
    StaleBlocksError,
)
from shared.worker.prefix import Prefix
from shared.worker.prefix_holding import PrefixHolding
from shared.worker.prompt_scoring import ScoreSender
from shared.worker.sampling import finish_reason, params_of, seen_tokens, wire_logprobs
from shared.worker.token_sender import TokenSender

log = logging.getLogger("moonpool.worker")
MOVE_WAIT_S = 1.0
"""For a gateway to send decode its run, or to name another one, once decode knew nothing of it."""
ASK_AGAIN_S = 0.2


class PrefillWork:
    """Owns the engine on the pool of now; each call serves one job."""

    def __init__(
        self,
        parts: WorkerParts,
        tools: PassTools,
        leave_queue: Callable[[PrefillJob], None],
        on_computed: Callable[[PrefillJob, int], None],
    ) -> None:
        self._parts = parts
        self._tools = tools
        self._bus = parts.context.bus
        self._leave_queue = leave_queue
        self._on_computed = on_computed
        self._announcer = KvAnnouncer(self._bus)
        self._holding = PrefixHolding(parts.grid)
        self._early = EarlyTaking(parts.context.tasks, tools.queue, self._holding)
        self._engine: PrefillEngine | None = None

    def start(self) -> None:
        self._parts.context.tasks.start_soon(self._announcer.run(), name="kv announcer")

    def open(self, session: PoolSession) -> None:
        loaded = self._parts.loaded
        device_tokens = self._parts.context.settings.device_tokens
        self._engine = prefill_engine(loaded, session.slots, device_tokens)

    def close(self) -> None:
        """Let go of the pool's memory; no job may be left."""
        self._engine = None

    def ask_early(self, job: PrefillJob) -> None:
        """For the slots of one that need not look for a prefix: in the next turn of the loop."""
        if not self._holding.may_find(job):
            self._early.ask(job, Prefix())

    async def serve(self, job: PrefillJob) -> None:
        """From the reservation to the answer of decode; whatever fails is raised."""
        with tracing.span("prefill", "server", job.told):
            await self._serve(job)

    async def _serve(self, job: PrefillJob) -> None:
        await asyncio.sleep(0)  # the reservation is answered before anything is done for it
        self._early.ask(job, await self._holding.hold(job))
        run = await job.run
        await self._early.settle(job)
        num_hit = self._holding.hit_tokens(job, await self._holding.hold(job))
        self._tools.queue.loaded(job.handle, job.num_tokens - num_hit)
        self._tools.turns.changed()
        computed = await self._compute(job, run)
        self._leave_queue(job)
        if job.decode is not None and job.refusal is not None:
            await self._end_refused(job, run, job.decode, computed)
        elif job.decode is None or computed.first is None:
            await self._send_end(job, run, computed)
        elif not run.is_resume and self._finish(job, run, computed) is not None:
            await self._send_end(job, run, computed)  # with token 0
            await self._let_decode_go(job, run, job.decode)
        else:
            first = computed.first.token if job.first_token is None else job.first_token
            await self._hand_over(job, run, computed, first)

    async def _hand_over(
        self, job: PrefillJob, run: PrefillRun, computed: Computed, first: int
    ) -> None:
        handoff = Handoff(
            ref=job.ref,
            node=job.session.node,
            blocks=computed.blocks,
            first_token=first,
            seen_tokens=seen_tokens(run.sampling, tokens_of(run)),
            times=_times(computed),
            reuse=self._reuse(job, computed),
            prefill=run.incarnation,
            traceparent=run.traceparent,
        )
        give_up_s: float | None = None
        while (decode := job.decode) is not None:
            job.moved.clear()
            try:
                await unless(job.moved, self._hand_over_to(decode, job, handoff))
            except ServiceError as error:
                # Of a run that came early the gateway may not have told decode yet, or it is about
                # to name another one, where this one promised nothing.
                now_s = monotonic_s()
                give_up_s = give_up_s or now_s + MOVE_WAIT_S
                is_unheard = job.came_early and error.code == ErrorCode.NOT_RESERVED
                may_wait = is_unheard and now_s < give_up_s
                if not await job.is_moved_from(decode, ASK_AGAIN_S if may_wait else 0.0):
                    if not may_wait:
                        raise
                    continue
            if job.decode == decode:
                return

    async def _hand_over_to(self, decode: InstanceRef, job: PrefillJob, handoff: Handoff) -> None:
        async def must_give_way() -> bool:
            """A decode of this node reads in place and waits for no slots: it needs time alone."""
            is_near = decode.node == job.session.node.id
            return not is_near and await job.session.client.is_wanted(job.handle)

        with tracing.span("handoff", attributes={"decode": decode.id}):
            await hand_over(self._bus, job, decode, handoff, must_give_way)

    async def _compute(self, job: PrefillJob, run: PrefillRun) -> Computed:
        """A pass whose blocks did not hold is thrown away; the next one trusts no cache."""
        scores = ScoreSender(self._sender(job, run))
        try:
            return await self._compute_unchanged(job, run, scores)
        finally:
            await scores.close()

    async def _compute_unchanged(
        self, job: PrefillJob, run: PrefillRun, scores: ScoreSender
    ) -> Computed:
        async def on_first(computed: Computed) -> None:
            await scores.drain()
            # After a pass that was thrown away later the gateway has it.
            if not run.is_resume and job.first_token is None:
                await self._send_first(job, run, computed)

        for _ in range(2):
            try:
                one = self._new_pass(job, run, scores)
                computed = await one.compute(lambda: self._holding.hold_in_turn(job), on_first)
                _tell_stages(job, computed)
                return computed
            except StaleBlocksError:
                log.warning("%s: blocks changed while they were read, computing anew", job.handle)
                await job.session.client.release(job.handle)
                job.prefix, job.may_look_again = Prefix(), False
        raise ServiceError(
            ErrorCode.KV_LOST, "the prompt's blocks changed while it ran", is_retryable=True
        )

    def _new_pass(self, job: PrefillJob, run: PrefillRun, scores: ScoreSender) -> PrefillPass:
        if self._engine is None:
            raise pool_lost()
        node = job.session.node
        on_layers: OnLayers | None = None
        # A decode of this node reads the blocks where they are.
        if job.decode is not None and job.decode.node != node.id:

            def on_layers(blocks: list[KvBlock], layers: tuple[int, int]) -> None:
                if job.decode is not None:
                    hints = Hints(job.ref, node, run.incarnation, blocks, layers)
                    self._announcer.announce(job.decode, hints)

        events = PassEvents(
            on_layers=on_layers,
            on_sealed=lambda num_blocks: self._on_computed(job, num_blocks),
            on_scores=scores.send,
        )
        params = params_of(run.sampling) if run.sampling.max_tokens else None
        return PrefillPass(self._tools, self._engine, job, tokens_of(run), params, events)

    async def _send_first(self, job: PrefillJob, run: PrefillRun, computed: Computed) -> None:
        """Token 0 to the gateway, when the answer goes on after it."""
        first = computed.first
        if first is None or self._finish(job, run, computed) is not None:
            return
        if job.judged_tbt_s is not None and job.decode is not None:
            job.refusal = await asks_to_join(self._bus, job, job.decode, job.judged_tbt_s)
            if job.refusal is not None:
                return
        await self._sender(job, run).send(
            [first.token],
            logprobs=wire_logprobs([first]),
            times=_times(computed),
            reuse=self._reuse(job, computed),
        )
        job.first_token = first.token

    async def _end_refused(
        self, job: PrefillJob, run: PrefillRun, decode: InstanceRef, computed: Computed
    ) -> None:
        """Instead of token 0. What was computed stays in the cache, as far as it is shareable."""
        await self._let_decode_go(job, run, decode)
        await self._sender(job, run).send_last(
            error=job.refusal, times=_times(computed), reuse=self._reuse(job, computed)
        )

    async def _let_decode_go(self, job: PrefillJob, run: PrefillRun, decode: InstanceRef) -> None:
        subject = subjects.instance("decode", decode.id, "cancel")
        await self._bus.publish(subject, Cancel(ref=job.ref, traceparent=run.traceparent))

    async def _send_end(self, job: PrefillJob, run: PrefillRun, computed: Computed) -> None:
        """The end of the answer, with token 0 or without any."""
        chosen = [] if computed.first is None else [computed.first]
        await self._sender(job, run).send_last(
            [one.token for one in chosen],
            logprobs=wire_logprobs(chosen),
            finish_reason=self._finish(job, run, computed),
            times=_times(computed),
            reuse=self._reuse(job, computed),
        )

    def _sender(self, job: PrefillJob, run: PrefillRun) -> TokenSender:
        if job.sender is None:
            job.sender = TokenSender(
                self._bus, job.ref, "prefill", run.reply_subject, incarnation=run.incarnation
            )
        return job.sender

    def _finish(self, job: PrefillJob, run: PrefillRun, computed: Computed) -> FinishReason | None:
        if computed.first is None:
            return "length"
        return finish_reason(
            run.sampling,
            self._parts.loaded.config.eos_token_ids,
            token=computed.first.token,
            num_given=1,
            num_tokens=job.num_tokens,
            context_tokens=self._parts.context_tokens,
        )

    def _reuse(self, job: PrefillJob, computed: Computed) -> Reuse:
        prefix = computed.prefix
        local_blocks = min(prefix.num_local, computed.hit_blocks)
        block_tokens = self._parts.grid.block_tokens
        return Reuse(
            prompt_tokens=job.num_tokens,
            local_tokens=local_blocks * block_tokens,
            remote_tokens=(computed.hit_blocks - local_blocks) * block_tokens,
            disk_tokens=min(prefix.from_disk.num_blocks, local_blocks) * block_tokens,
            disk_bytes=prefix.from_disk.num_bytes,
            disk_s=prefix.from_disk.seconds,
            fetched_bytes=prefix.fetched_bytes,
            fetch_s=prefix.fetch_s,
            transport=prefix.transport,
            scored_tokens=0 if job.prompt_logprobs is None else job.num_tokens - 1,
        )

    async def tell(self, job: PrefillJob, error: ErrorInfo) -> None:
        """The gateway hears of a failure once it has sent the run."""
        if job.run.done() and not job.run.cancelled():
            await self._sender(job, job.run.result()).send_last(error=error)


def tokens_of(run: PrefillRun) -> npt.NDArray[np.int32]:
    return np.frombuffer(run.tokens, dtype="<i4").astype(np.int32, copy=False)


def _tell_stages(job: PrefillJob, computed: Computed) -> None:
    """Queue and computation as spans, once both are over."""
    began_s = job.run_s + computed.queue_s
    tracing.past("queue", job.run_s, began_s, {})
    told = {"compute_s": computed.compute_s, "hit_blocks": computed.hit_blocks}
    tracing.past("compute", began_s, monotonic_s(), told)


def _times(computed: Computed) -> Times:
    return Times(
        queue_s=computed.queue_s,
        load_s=computed.prefix.load_s,
        compute_s=computed.compute_s,
        score_s=computed.score_s,
    )
