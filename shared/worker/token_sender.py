"""Sends the tokens of one attempt to its gateway. Keeps the index of the next one."""

from collections.abc import Sequence
from typing import Literal

from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorInfo, RequestRef
from shared.messages.tokens import FinishReason, TokenChunk, TokenLogprobs
from shared.runtime.bus import Bus


class TokenSender:
    """One stage's stream to the reply subject of one attempt."""

    def __init__(
        self,
        bus: Bus,
        ref: RequestRef,
        stage: Literal["prefill", "decode"],
        reply_subject: str,
        next_index: int = 0,
    ) -> None:
        self._bus = bus
        self._ref = ref
        self._stage = stage
        self._reply_subject = reply_subject
        self.next_index = next_index

    async def send(
        self,
        tokens: Sequence[int] = (),
        *,
        logprobs: Sequence[TokenLogprobs] = (),
        finish_reason: FinishReason | None = None,
        error: ErrorInfo | None = None,
        times: Times | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        chunk = TokenChunk(
            ref=self._ref,
            stage=self._stage,
            index=self.next_index,
            tokens=list(tokens),
            logprobs=list(logprobs),
            finish_reason=finish_reason,
            error=error,
            times=times,
            reuse=reuse,
        )
        self.next_index += len(tokens)
        await self._bus.publish(self._reply_subject, chunk)
