"""Sends the tokens of one attempt to its gateway. Keeps the index of the next one.

A lost chunk in the middle shows by the gap before the next one. After the last one comes nothing:
it is said again until the gateway has heard it, as are the prompt's log probabilities.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorCode, ErrorInfo, Ok, RequestRef
from shared.messages.tokens import FinishReason, PromptLogprobs, TokenChunk, TokenLogprobs
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.worker")
LAST_TRIES = 8
LAST_TIMEOUT_S = 1.0
LAST_PAUSE_S = 0.3
"""A gateway that was cut off is back within the tries; one that is gone ends the attempt."""


class TokenSender:
    """One stage's stream to the reply subject of one attempt."""

    def __init__(
        self,
        bus: Bus,
        ref: RequestRef,
        stage: Literal["prefill", "decode"],
        reply_subject: str,
        next_index: int = 0,
        *,
        incarnation: str = "",
    ) -> None:
        """`incarnation`: of the instance that sends."""
        self._bus = bus
        self._incarnation = incarnation
        self._ref = ref
        self._stage = stage
        self._reply_subject = reply_subject
        self.next_index = next_index

    async def send(
        self,
        tokens: Sequence[int],
        *,
        logprobs: Sequence[TokenLogprobs] = (),
        times: Times | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        """More will follow. `logprobs` are parallel to the tokens, or empty."""
        chunk = self._chunk(tokens, logprobs=logprobs, times=times, reuse=reuse)
        # Of the answer only token 0 is waited for; later ones of many requests leave together.
        is_first = self._stage == "prefill"
        await self._bus.publish(self._reply_subject, chunk, at_once=is_first)

    async def send_last(
        self,
        tokens: Sequence[int] = (),
        *,
        logprobs: Sequence[TokenLogprobs] = (),
        finish_reason: FinishReason | None = None,
        error: ErrorInfo | None = None,
        times: Times | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        """The end of the answer, or of the attempt; returns when it is heard, or nobody hears."""
        chunk = self._chunk(
            tokens,
            logprobs=logprobs,
            finish_reason=finish_reason,
            error=error,
            times=times,
            reuse=reuse,
        )
        if not await self._until_heard(chunk):
            log.warning("%s: gateway %s does not hear its end", self._ref.handle, self._ref.gateway)

    async def send_prompt(self, piece: PromptLogprobs) -> None:
        """Returns when it is heard: a gap among the prompt's pieces would not show by itself.

        Raises ServiceError when nobody hears it.
        """
        if not await self._until_heard(self._chunk((), prompt=piece)):
            raise ServiceError(
                ErrorCode.OVERLOADED,  # that nobody hears says nothing against this instance
                f"gateway {self._ref.gateway} does not hear the prompt's log probabilities",
                is_retryable=True,
            )

    async def _until_heard(self, chunk: TokenChunk) -> bool:
        for _ in range(LAST_TRIES):
            try:
                await self._bus.request(self._reply_subject, chunk, Ok, timeout_s=LAST_TIMEOUT_S)
                return True
            except ServiceError:
                await asyncio.sleep(LAST_PAUSE_S)
        return False

    def _chunk(
        self,
        tokens: Sequence[int],
        *,
        logprobs: Sequence[TokenLogprobs] = (),
        prompt: PromptLogprobs | None = None,
        finish_reason: FinishReason | None = None,
        error: ErrorInfo | None = None,
        times: Times | None = None,
        reuse: Reuse | None = None,
    ) -> TokenChunk:
        chunk = TokenChunk(
            ref=self._ref,
            stage=self._stage,
            incarnation=self._incarnation,
            index=self.next_index,
            tokens=list(tokens),
            logprobs=list(logprobs),
            prompt=prompt,
            finish_reason=finish_reason,
            error=error,
            times=times,
            reuse=reuse,
        )
        self.next_index += len(tokens)
        return chunk
