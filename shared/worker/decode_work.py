"""One request's way: its KV into the device cache, into the batch, its last chunk."""

import asyncio
import logging
from collections.abc import Callable

from shared.engine.engines import decode_engine
from shared.messages.bill import Reuse, Times, joined_transports
from shared.messages.common import ErrorCode, ErrorInfo
from shared.messages.decode import Handoff, HandoffReply
from shared.messages.pool import AllocateReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.scheduling.slo import tbt_s
from shared.telemetry import tracing
from shared.worker.decode_batch import DecodeBatch, Sequence
from shared.worker.decode_cache import DecodeCache, PoolBlocks
from shared.worker.decode_job import DecodeJob
from shared.worker.kv_check import check_handed_over
from shared.worker.kv_intake import KvIntake
from shared.worker.parts import WorkerParts
from shared.worker.pool_session import geometry_of
from shared.worker.prefix import hold_prefix
from shared.worker.sampling import unpacked, wire_logprobs
from shared.worker.slot_wait import allocate_when_free

log = logging.getLogger("moonpool.worker")


class DecodeWork:
    """Owns the device cache and the batch; each call serves one job."""

    def __init__(
        self,
        parts: WorkerParts,
        on_arrived: Callable[[DecodeJob], None],
        on_through: Callable[[DecodeJob, Sequence], None],
        on_room: Callable[[str, int], None],
    ) -> None:
        self._parts = parts
        self._on_arrived = on_arrived
        self._on_through = on_through
        loaded, settings = parts.loaded, parts.context.settings
        engine = decode_engine(loaded, settings.decode_tokens)
        saved_tokens = settings.saved_tokens
        self.cache = DecodeCache(
            engine,
            parts.compute,
            loaded.layout,
            settings.decode_tokens if saved_tokens is None else saved_tokens,
            on_room,
        )
        self.batch = DecodeBatch(
            engine, self.cache, parts.compute, loaded.config.eos_token_ids, parts.context_tokens
        )
        self._slot_line = asyncio.Lock()

    @property
    def used_tokens(self) -> int:
        return self.cache.used_tokens

    async def serve(self, job: DecodeJob) -> None:
        """From the run to the last token; whatever fails is raised."""
        with tracing.span("decode", "server", job.told):
            await self._serve(job)

    async def _serve(self, job: DecodeJob) -> None:
        with tracing.span("intake") as span:
            if job.is_same_node:
                handoff, moved = await self._read_in_place(job)
            else:
                handoff, moved = await self._bring_here(job)
            span.set({"bytes": moved.streamed_bytes, "transport": moved.transport})
        self._on_arrived(job)
        await self._release(job)
        answer = job.given_tokens or [handoff.first_token]
        sequence = Sequence(
            job.handle,
            job.run.num_tokens,
            job.run.sampling,
            answer,
            job.sender,
            unpacked(handoff.seen_tokens),
        )
        job.reply = moved
        job.settled.set()
        self._parts.poke()
        with tracing.span("generate") as span:
            await self._generate(job, sequence)
            span.set({"tokens": len(sequence.token_times_s) - 1})
        self._on_through(job, sequence)
        await self.cache.end(job.handle)  # the last words may take a while
        if sequence.failure is not None:
            raise sequence.failure
        await self._send_last(job, handoff, moved, sequence)

    async def _generate(self, job: DecodeJob, sequence: Sequence) -> None:
        """In the batch until the end; each time that it is put out, until it is inside again."""
        while True:
            await self.cache.come_in(job.handle)
            self.batch.join(sequence)
            self._parts.poke()
            await sequence.stopped.wait()
            if not sequence.is_put_out:
                return

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
        await self._check_bytes(job, slots, handoff)
        return handoff, HandoffReply()

    async def _bring_here(self, job: DecodeJob) -> tuple[Handoff, HandoffReply]:
        """Prefill is elsewhere: what the own pool has not is pulled while prefill computes."""
        run, pool = job.run, job.session.client
        chain = run.chain if run.cache == "on" else b""
        prefix = await hold_prefix(pool, job.ref, chain, run.source, job.remaining_s)
        # Slots are taken when the first layers are ready: a prompt that only waits holds none.
        hints = await job.next_hints()
        num_own = self._parts.grid.num_blocks(run.num_tokens) - prefix.num_blocks
        own = AllocateReply(slots=[], generations=[])
        if num_own:
            async with self._slot_line:
                own = await allocate_when_free(pool, job.handle, num_own)
        num_layers = self._parts.loaded.config.num_layers
        intake = KvIntake(pool, run, self._parts.grid, num_layers, prefix, own)
        while hints is not None:
            await intake.pull_hinted(hints)
            hints = await job.next_hints()
        handoff = await job.wait_handoff()
        blocks = await intake.complete(handoff)
        arrived_s = monotonic_s()
        await self._load(job, blocks.slots, blocks.generations)
        await self._check_bytes(job, blocks.slots, handoff)
        return handoff, HandoffReply(
            streamed_bytes=intake.moved_bytes + prefix.fetched_bytes,
            stream_s=intake.seconds + prefix.fetch_s,
            hidden_bytes=intake.bytes_until(job.handoff_s) + prefix.fetched_bytes,
            tail_s=arrived_s - job.handoff_s,
            transport=joined_transports([*intake.transports, prefix.transport]),
        )

    async def _load(self, job: DecodeJob, slots: list[int], generations: list[int]) -> None:
        """Into the device cache, or beside it while there is no room."""
        num_tokens, grid = job.run.num_tokens, self._parts.grid
        if len(slots) != grid.num_blocks(num_tokens):
            raise ServiceError(
                ErrorCode.KV_LOST,
                f"the hand-over names {len(slots)} blocks of {grid.num_blocks(num_tokens)}",
                is_retryable=True,
            )
        limit = self._parts.room(num_tokens, job.run.sampling.max_tokens)
        await self.cache.arrive(job.handle, PoolBlocks(job.session.slots, slots, num_tokens), limit)
        if not job.session.client.generations_hold(slots, generations):
            raise ServiceError(
                ErrorCode.KV_LOST, "blocks changed while they were loaded", is_retryable=True
            )

    async def _check_bytes(self, job: DecodeJob, slots: list[int], handoff: Handoff) -> None:
        """What was loaded is what prefill sealed: nobody looks at it again."""
        geometry = geometry_of(self._parts.loaded.layout)
        await check_handed_over(job.session.client.data, geometry, slots, handoff.blocks)

    async def _send_last(
        self, job: DecodeJob, handoff: Handoff, moved: HandoffReply, sequence: Sequence
    ) -> None:
        joined_s = sequence.token_times_s[0]
        reuse: Reuse = handoff.reuse.model_copy(
            update={
                "streamed_bytes": moved.streamed_bytes,
                "stream_s": moved.stream_s,
                "hidden_bytes": moved.hidden_bytes,
                "tail_s": moved.tail_s,
                "transport": joined_transports([handoff.reuse.transport, moved.transport]),
            }
        )
        await job.sender.send_last(
            [sampled.token for sampled in sequence.unsent],
            logprobs=wire_logprobs(sequence.unsent),
            finish_reason=sequence.finish,
            times=Times(
                handoff_s=joined_s - job.handoff_s,
                tbt_s=tbt_s(sequence.token_times_s),
                preempted_s=sequence.preempted_s,
                preemptions=sequence.num_preemptions,
            ),
            reuse=reuse,
        )

    async def clean_up(self, job: DecodeJob) -> None:
        """Out of the batch, the pool and the device cache, in whatever of them it is."""
        self.batch.leave(job.handle)
        job.settled.set()
        await self._release(job)
        await self.cache.end(job.handle)

    async def tell(self, job: DecodeJob, error: ErrorInfo) -> None:
        await job.sender.send_last(error=error)

    async def _release(self, job: DecodeJob) -> None:
        try:
            await job.session.client.release(job.handle)
        except ServiceError as error:
            log.debug("%s: released with its pool: %s", job.handle, error)
