"""The continuous batch: one step at a time for all sequences that are in it at that moment.

A sequence that is put out of the device cache leaves the batch and joins it again: its position,
its sampler and the tokens that are still to be fed stay with it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence as SequenceOf

from shared.engine.decode import DecodeEngine
from shared.engine.sampler import Sampled, Sampler, choose_each
from shared.messages.common import ErrorCode, Sampling
from shared.messages.tokens import FinishReason
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.telemetry import about
from shared.worker.compute import ComputeThread
from shared.worker.decode_cache import DecodeCache
from shared.worker.sampling import finish_reason, params_of, wire_logprobs
from shared.worker.token_sender import TokenSender

log = logging.getLogger("moonpool.worker")


class Sequence:
    """One answer that is being generated; its KV is in the engine's cache under `handle`."""

    def __init__(
        self,
        handle: str,
        num_tokens: int,
        sampling: Sampling,
        answer: SequenceOf[int],
        sender: TokenSender,
        seen_tokens: SequenceOf[int] = (),
    ) -> None:
        self.handle = handle
        self.sampling = sampling
        self.sampler = Sampler(params_of(sampling), seen_tokens, answer)
        """Its state is rebuilt here from the tokens that are given."""
        self.sender = sender
        self.num_tokens = num_tokens
        self.num_answered = len(answer)
        self.feed = deque(answer)
        """Tokens whose KV is not computed yet; all but the last are known to be fed only."""
        self.position = num_tokens
        self.finish: FinishReason | None = None
        self.failure: ServiceError | None = None
        self.is_put_out = False
        self.stopped = asyncio.Event()
        """It has ended or was put out."""
        self.unsent: list[Sampled] = []
        """The last token, which goes out with the last chunk."""
        self.token_times_s: list[float] = []
        """When each token of ours was sampled; the first is the time of joining."""
        self.about = about.current()
        """The request of whoever made it."""
        self.num_preemptions = 0
        self.preempted_s = 0.0
        self._put_out_s = 0.0

    @property
    def last_token(self) -> int:
        return self.feed[-1]

    @property
    def context_tokens(self) -> int:
        return self.position

    def end(self) -> None:
        self.is_put_out = False
        self.stopped.set()

    def put_out(self, now_s: float) -> None:
        self.is_put_out = True
        self.num_preemptions += 1
        self._put_out_s = now_s
        self.stopped.set()

    def joins(self, now_s: float) -> None:
        """For the first time, or again."""
        if self.is_put_out:
            self.preempted_s += now_s - self._put_out_s
        else:
            self.token_times_s.append(now_s)
        self.is_put_out = False
        self.stopped.clear()

    def advance(self, sampled: Sampled | None) -> None:
        """A step is done; it chose nothing while given tokens were fed."""
        self.feed.popleft()
        self.position += 1
        if sampled is not None:
            self.feed.append(sampled.token)
            self.num_answered += 1


class DecodeBatch:
    """Owns the sequences that take part in steps. Sleeps when there are none."""

    def __init__(
        self,
        engine: DecodeEngine,
        cache: DecodeCache,
        compute: ComputeThread,
        eos_token_ids: tuple[int, ...],
        context_tokens: int,
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._compute = compute
        self._eos_token_ids = eos_token_ids
        self._context_limit = context_tokens
        self._sequences: dict[str, Sequence] = {}
        self._joined = asyncio.Event()
        self.steps_total = self.tokens_total = 0
        self.compute_s_total = 0.0

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, handle: str) -> bool:
        return handle in self._sequences

    @property
    def context_tokens(self) -> int:
        return sum(sequence.context_tokens for sequence in self._sequences.values())

    def join(self, sequence: Sequence) -> None:
        """Take part from the next step on; one that is complete already ends at once.

        All its KV is in the device cache."""
        sequence.joins(monotonic_s())
        sequence.finish = self._finish_reason(sequence)
        if sequence.finish is not None:
            sequence.end()
            return
        self._sequences[sequence.handle] = sequence
        self._cache.settle(sequence.handle)
        self._joined.set()

    def leave(self, handle: str) -> None:
        """No part in later steps; what a running step finds for it is dropped."""
        self._sequences.pop(handle, None)

    async def run(self) -> None:
        while True:
            if not self._sequences:
                self._joined.clear()
                await self._joined.wait()
            self._cache.changed.clear()
            sequences = await self._with_room()
            if sequences:
                await self._step(sequences)
            elif self._sequences:
                await self._cache.changed.wait()

    async def _with_room(self) -> list[Sequence]:
        """Those that take part in the next step; who is put out or cannot stay leaves."""
        sequences = dict(self._sequences)
        try:
            prepared = await self._cache.prepare(
                {handle: sequence.position + 1 for handle, sequence in sequences.items()}
            )
        except Exception as error:  # as a failed step: nobody may go on without room
            log.exception("no room could be made for a decode step")
            self._fail_all(list(sequences.values()), error)
            return []
        for handle in prepared.put_out:
            log.info(
                "%s: put out of the device cache at %d tokens",
                handle,
                sequences[handle].position,
                extra=sequences[handle].about.extra,
            )
            self.leave(handle)
            sequences[handle].put_out(monotonic_s())
        for handle in prepared.refused:
            self.leave(handle)
            sequences[handle].failure = ServiceError(
                ErrorCode.OVERLOADED,
                "neither the device cache nor host memory has room for it; retry elsewhere",
                is_retryable=True,
            )
            sequences[handle].end()
        return [self._sequences[each] for each in prepared.ready if each in self._sequences]

    async def _step(self, sequences: list[Sequence]) -> None:
        start_s = monotonic_s()
        try:
            chosen = await self._compute.run(lambda: self._compute_step(sequences))
        except Exception as error:  # a step is all or nothing: every request in it is told
            log.exception("a decode step failed")
            self._fail_all(sequences, error)
            return
        now_s = monotonic_s()
        self.steps_total += 1
        self.tokens_total += sum(sampled is not None for sampled in chosen)
        self.compute_s_total += now_s - start_s
        for sequence, sampled in zip(sequences, chosen, strict=True):
            if self._sequences.get(sequence.handle) is not sequence:
                continue
            sequence.advance(sampled)
            if sampled is not None:
                await self._emit(sequence, sampled, now_s)

    def _compute_step(self, sequences: list[Sequence]) -> list[Sampled | None]:
        """In the compute thread. Sequences that still feed given tokens sample nothing."""
        logits = self._engine.step(
            [(sequence.handle, sequence.feed[0], sequence.position) for sequence in sequences]
        )
        rows = [row for row, sequence in enumerate(sequences) if len(sequence.feed) == 1]
        chosen = choose_each(
            logits, [(row, sequences[row].sampler, sequences[row].position + 1) for row in rows]
        )
        found: list[Sampled | None] = [None] * len(sequences)
        for row, sampled in zip(rows, chosen, strict=True):
            found[row] = sampled
        return found

    async def _emit(self, sequence: Sequence, sampled: Sampled, now_s: float) -> None:
        """Out to the gateway; the last token goes with the last chunk, which the owner sends."""
        sequence.token_times_s.append(now_s)
        sequence.finish = self._finish_reason(sequence)
        if sequence.finish is not None:
            sequence.unsent = [sampled]
            self.leave(sequence.handle)
            sequence.end()
            return
        try:
            await sequence.sender.send([sampled.token], logprobs=wire_logprobs([sampled]))
        except ServiceError as error:
            self._fail(sequence, f"its tokens cannot be sent: {error}")

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        return finish_reason(
            sequence.sampling,
            self._eos_token_ids,
            token=sequence.last_token,
            num_given=sequence.num_answered,
            num_tokens=sequence.num_tokens,
            context_tokens=self._context_limit,
        )

    def _fail_all(self, sequences: SequenceOf[Sequence], error: Exception) -> None:
        for sequence in sequences:
            self._fail(sequence, f"a decode step failed: {type(error).__name__}")

    def _fail(self, sequence: Sequence, problem: str) -> None:
        self.leave(sequence.handle)
        sequence.failure = ServiceError(ErrorCode.INTERNAL, problem, is_retryable=True)
        sequence.end()
