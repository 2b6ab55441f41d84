"""Computes one prompt: slots, chunks on the grid, seals, token 0. Knows no gateway and no bus."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.prefill import PrefillEngine
from shared.engine.prompt_scores import PromptScores
from shared.engine.sampler import Sampled, Sampler, choose_each
from shared.engine.sampling_params import SamplingParams
from shared.kv import block_keys
from shared.messages.common import ErrorCode
from shared.messages.decode import KvBlock
from shared.messages.pool import SealBlock
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.worker.compute import ComputeThread
from shared.worker.grid import NUM_LAYER_GROUPS, Chunk, Grid, layer_groups
from shared.worker.pool_client import PoolClient
from shared.worker.prefill_job import PrefillJob
from shared.worker.prefill_queue import PrefillQueue
from shared.worker.prefix import Prefix
from shared.worker.prompt_scoring import wish_for
from shared.worker.slot_wait import allocate_when_free
from shared.worker.turns import Turns

OnLayers = Callable[[list[KvBlock], tuple[int, int]], None]
"""Blocks of which these layers are complete now; called on the event loop."""
OnScores = Callable[[int, PromptScores], Awaitable[None]]
"""Log probabilities of the prompt's tokens from this position on; awaited between two chunks."""
OnFirst = Callable[["Computed"], Awaitable[None]]
"""All is computed and was read unchanged; its last blocks are not sealed yet."""


class StaleBlocksError(Exception):
    """A block that was read changed meanwhile: what was computed from it is void."""


@dataclass(frozen=True, slots=True)
class Computed:
    """All blocks of a prompt, in order, and the first token of its answer, if it has one."""

    blocks: list[KvBlock]
    first: Sampled | None
    prefix: Prefix
    hit_blocks: int
    queue_s: float
    """Waiting for other prompts and for slots; not for its own prefix."""
    compute_s: float
    score_s: float = 0.0
    """Of `compute_s`, for the log probabilities of the prompt."""


@dataclass(frozen=True, slots=True)
class PassEvents:
    """Who is told what of a pass."""

    on_layers: OnLayers | None
    """None: nobody wants layers before the prompt is computed."""
    on_sealed: Callable[[int], None]
    """So many leading blocks of it are readable."""
    on_scores: OnScores


@dataclass(frozen=True, slots=True)
class PassTools:
    """What every pass of an instance uses."""

    compute: ComputeThread
    grid: Grid
    num_layers: int
    queue: PrefillQueue
    turns: Turns
    make_room: Callable[[PrefillJob], Awaitable[None]]


class PrefillPass:
    """One computation of one prompt. Everything it holds is held under the job's handle."""

    def __init__(
        self,
        tools: PassTools,
        engine: PrefillEngine,
        job: PrefillJob,
        tokens: npt.NDArray[np.int32],
        params: SamplingParams | None,
        events: PassEvents,
    ) -> None:
        """Without `params` no token is chosen after the prompt."""
        self._tools = tools
        self._engine = engine
        self._job = job
        self._tokens = tokens
        self._params = params
        self._events = events
        self._groups = layer_groups(tools.num_layers, NUM_LAYER_GROUPS)
        self._blocks: list[KvBlock] = []
        self._compute_s = 0.0
        self._score_s = 0.0
        self._scores: PromptScores | None = None
        """Of the chunk that was computed last."""
        self._first: Sampled | None = None
        self._keyed_blocks = 0
        if job.publishes:
            shareable = tools.grid.shareable_blocks(len(tokens))
            self._keyed_blocks = min(shareable, block_keys.num_keys(job.chain))

    async def compute(self, hold: Callable[[], Awaitable[Prefix]], on_first: OnFirst) -> Computed:
        """`hold` gives the cached prefix, when it is this prompt's turn.

        `on_first` is awaited before the last blocks are sealed, which the client need not wait for.
        Raises StaleBlocksError when the pass must be thrown away.
        """
        tools, job = self._tools, self._job
        num_tokens = len(self._tokens)
        while True:
            async with tools.turns.turn(job.handle) as free_s:
                prefix = await hold()
                hit_blocks = tools.grid.hit_blocks(prefix.num_blocks, num_tokens)
                self._blocks = self._cached_blocks(prefix, hit_blocks)
                wait_s = await self._take_slots(num_tokens)
                if wait_s is None:
                    continue  # after those that have their slots
                tools.queue.started(job.handle)
                self._announce(self._blocks[:hit_blocks], (0, tools.num_layers))
                chunks = list(tools.grid.chunks(hit_blocks * tools.grid.block_tokens, num_tokens))
                await self._compute_chunk(chunks[0])
                break
        for done, chunk in pairwise(chunks):
            self._check_unchanged(done)  # what is told now counts
            await self._tell_scores(done)
            await self._seal(done)
            tools.queue.learn()
            async with tools.turns.turn(job.handle):
                await self._compute_chunk(chunk)
        self._check_unchanged(chunks[-1])
        await self._tell_scores(chunks[-1])
        queue_s = max(free_s - job.run_s, 0.0) + wait_s
        computed = Computed(
            self._blocks, self._first, prefix, hit_blocks, queue_s, self._compute_s, self._score_s
        )
        await on_first(computed)
        await asyncio.sleep(0)  # what was sent leaves before more is made ready
        await self._seal(chunks[-1])
        tools.queue.learn()
        self._check_unchanged(chunks[-1])  # a block may have changed during the last seal
        return computed

    @property
    def _pool(self) -> PoolClient:
        return self._job.session.client

    def _cached_blocks(self, prefix: Prefix, hit_blocks: int) -> list[KvBlock]:
        held = prefix.blocks
        return [
            KvBlock(
                index=index,
                slot=held.slots[index],
                generation=held.generations[index],
                valid_tokens=self._tools.grid.block_tokens,
                checksum=held.checksums[index],
                is_sealed=True,
            )
            for index in range(hit_blocks)
        ]

    async def _take_slots(self, num_tokens: int) -> float | None:
        """All slots for what is to be computed; the seconds that it took.

        None: there are too few, and others have to compute before there are more.
        """
        grid, job, queue = self._tools.grid, self._job, self._tools.queue
        start_s = monotonic_s()
        first = len(self._blocks)
        num_slots = grid.num_blocks(num_tokens) - first
        early, job.early_slots = job.early_slots, None
        reply = None if early is None else await early.given()
        if reply is not None:
            assert len(reply.slots) == num_slots, "slots for another prefix"
        elif queue.must_yield(job.handle):
            try:
                reply = await self._pool.allocate(job.handle, num_slots)
            except ServiceError as error:
                if error.code != ErrorCode.OVERLOADED:
                    raise
                queue.lacks_slots(job.handle)
                return None
        else:
            reply = await allocate_when_free(
                self._pool, job.handle, num_slots, make_room=lambda: self._tools.make_room(job)
            )
        self._job.has_slots = True
        for offset, (slot, generation) in enumerate(
            zip(reply.slots, reply.generations, strict=True)
        ):
            index = first + offset
            valid_tokens = grid.valid_tokens(index, num_tokens)
            self._blocks.append(
                KvBlock(index=index, slot=slot, generation=generation, valid_tokens=valid_tokens)
            )
        return monotonic_s() - start_s

    async def _compute_chunk(self, chunk: Chunk) -> None:
        """One chunk in the compute thread; its layers are announced while it runs."""
        job = self._job
        num_tokens = len(self._tokens)
        block_range = self._tools.grid.blocks_of(chunk)
        prefix = self._blocks[: block_range.start]
        prefix_slots = [block.slot for block in prefix]
        chunk_blocks = [self._blocks[index] for index in block_range]
        chunk_slots = [block.slot for block in chunk_blocks]
        is_last = chunk.end == num_tokens
        loop = asyncio.get_running_loop()

        wants_layers = self._events.on_layers is not None

        def on_layer(layer: int) -> None:
            group = self._groups.get(layer)
            if group is not None:
                loop.call_soon_threadsafe(self._announce, chunk_blocks, group)

        wish = wish_for(self._tokens, chunk, job.prompt_logprobs)

        def on_scores(scores: PromptScores) -> None:
            self._scores = scores

        def work() -> tuple[Sampled | None, float]:
            start_s = monotonic_s()
            logits = self._engine.prefill_chunk(
                self._tokens[chunk.start : chunk.end],
                chunk.start,
                prefix_slots,
                chunk_slots,
                generations=[block.generation for block in (*prefix, *chunk_blocks)],
                on_layer=on_layer if wants_layers else None,
                is_cancelled=lambda: job.is_stopped,
                want_logits=is_last and self._params is not None,
                wish=wish,
                on_scores=on_scores,
            )
            return self._choose_first(logits), monotonic_s() - start_s

        queue = self._tools.queue
        queue.computing(job.handle, chunk.end, chunk.num_tokens, monotonic_s())
        self._first, seconds = await self._tools.compute.run(work)
        self._compute_s += seconds
        # Prompts that are not scored are as fast as ever: the queue must not learn otherwise.
        score_s = 0.0 if self._scores is None else self._scores.seconds
        queue.computed(job.handle, chunk.end, chunk.num_tokens, seconds - score_s)

    def _choose_first(self, logits: torch.Tensor | None) -> Sampled | None:
        """Token 0 of the answer; None without logits."""
        if logits is None or self._params is None:
            return None
        sampler = Sampler(self._params, self._tokens.tolist())
        return choose_each(logits.unsqueeze(0), [(0, sampler, len(self._tokens))])[0]

    def _announce(self, blocks: list[KvBlock], layers: tuple[int, int]) -> None:
        if blocks and self._events.on_layers is not None and not self._job.is_stopped:
            self._events.on_layers(blocks, layers)

    async def _tell_scores(self, chunk: Chunk) -> None:
        scores, self._scores = self._scores, None
        if scores is not None:
            self._score_s += scores.seconds
            await self._events.on_scores(chunk.start + 1, scores)

    async def _seal(self, chunk: Chunk) -> None:
        """Whole chunks get their keys and are published; the rest stays the request's own.

        The pool may answer with another slot, which had the same key before. Nothing is published
        that was computed from a block that changed meanwhile.
        """
        self._check_unchanged(chunk)
        blocks = [self._blocks[index] for index in self._tools.grid.blocks_of(chunk)]
        keyed = [block for block in blocks if block.index < self._keyed_blocks]
        private = blocks[len(keyed) :]
        if keyed:
            chain = block_keys.take(self._job.chain, keyed[-1].index + 1)
            await self._seal_run(keyed, chain)
            self._events.on_sealed(keyed[-1].index + 1)
        if private:
            await self._seal_run(private, b"")

    def _check_unchanged(self, chunk: Chunk) -> None:
        """All that the chunk was computed from, and itself, is still in the use that was held."""
        read = self._blocks[: self._tools.grid.num_blocks(chunk.end)]
        if not self._pool.generations_hold(
            [block.slot for block in read], [block.generation for block in read]
        ):
            raise StaleBlocksError

    async def _seal_run(self, blocks: list[KvBlock], chain: bytes) -> None:
        first = blocks[0].index
        sealed = await self._pool.seal(
            self._job.handle,
            first,
            chain,
            [
                SealBlock(
                    slot=block.slot,
                    generation=block.generation,
                    valid_tokens=block.valid_tokens,
                    key=block_keys.key_at(chain, block.index) if chain else b"",
                )
                for block in blocks
            ],
        )
        for offset, block in enumerate(blocks):
            self._blocks[first + offset] = block.model_copy(
                update={
                    "slot": sealed.slots[offset],
                    "generation": sealed.generations[offset],
                    "checksum": sealed.checksums[offset],
                    "is_sealed": bool(chain),
                }
            )
