"""The continuous batch: one step at a time for all sequences that are in it at that moment."""

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
from shared.worker.compute import ComputeThread
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
        self.ended = asyncio.Event()
        self.unsent: list[Sampled] = []
        """The last token, which goes out with the last chunk."""
        self.token_times_s: list[float] = []
        """When each token of ours was sampled; the first is the time of joining."""

    @property
    def last_token(self) -> int:
        return self.feed[-1]

    @property
    def context_tokens(self) -> int:
        return self.position

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
        compute: ComputeThread,
        eos_token_ids: tuple[int, ...],
        context_tokens: int,
    ) -> None:
        self._engine = engine
        self._compute = compute
        self._eos_token_ids = eos_token_ids
        self._context_limit = context_tokens
        self._sequences: dict[str, Sequence] = {}
        self._joined = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def context_tokens(self) -> int:
        return sum(sequence.context_tokens for sequence in self._sequences.values())

    def join(self, sequence: Sequence) -> None:
        """Take part from the next step on; one that is complete already ends at once."""
        sequence.token_times_s.append(monotonic_s())
        sequence.finish = self._finish_reason(sequence)
        if sequence.finish is not None:
            sequence.ended.set()
            return
        self._sequences[sequence.handle] = sequence
        self._joined.set()

    def leave(self, handle: str) -> None:
        """No part in later steps; what a running step finds for it is dropped."""
        self._sequences.pop(handle, None)

    async def run(self) -> None:
        while True:
            if not self._sequences:
                self._joined.clear()
                await self._joined.wait()
            await self._step(list(self._sequences.values()))

    async def _step(self, sequences: list[Sequence]) -> None:
        try:
            chosen = await self._compute.run(lambda: self._compute_step(sequences))
        except Exception as error:  # a step is all or nothing: every request in it is told
            log.exception("a decode step failed")
            for sequence in sequences:
                self._fail(sequence, f"a decode step failed: {type(error).__name__}")
            return
        now_s = monotonic_s()
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
            sequence.ended.set()
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

    def _fail(self, sequence: Sequence, problem: str) -> None:
        self.leave(sequence.handle)
        sequence.failure = ServiceError(ErrorCode.INTERNAL, problem, is_retryable=True)
        sequence.ended.set()
