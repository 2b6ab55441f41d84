"""One attempt at an answer, from the run that announces it to its last token."""

import asyncio

import numpy as np

from shared.messages.common import ErrorCode
from shared.messages.decode import DecodeRun, Handoff, HandoffReply, KvReady
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.scheduling.decode_judge import Verdict
from shared.worker.attempts import Attempt
from shared.worker.peer_watch import Peer
from shared.worker.pool_session import PoolSession
from shared.worker.token_sender import TokenSender

MAX_HINTS = 8192


class DecodeJob(Attempt):
    """What has been said about the request's KV so far."""

    def __init__(self, run: DecodeRun, session: PoolSession, bus: Bus) -> None:
        super().__init__(run.ref)
        self.run = run
        self.session = session
        self.given_tokens: list[int] = np.frombuffer(run.given_tokens, dtype="<i4").tolist()
        # Without given tokens the first one of decode is token 1: token 0 comes from prefill.
        self.sender = TokenSender(
            bus,
            run.ref,
            "decode",
            run.reply_subject,
            max(len(self.given_tokens), 1),
            incarnation=run.incarnation,
        )
        self.handoff: Handoff | None = None
        self.handoff_s = 0.0
        self.reply: HandoffReply | None = None
        """Set when all KV has been copied: the pools' slots are not needed any more."""
        self.verdict: Verdict | None = None
        """Whether it was let in when its prefill was done; None: nobody asked."""
        self.judged_s = 0.0
        self.is_through = False
        """It takes part in no step any more."""
        self.settled = asyncio.Event()
        """Taken over, or never will be."""
        self._hints: list[KvReady] = []
        self._news = asyncio.Event()

    @property
    def prefill(self) -> Peer:
        return Peer("prefill", self.run.prefill.id, self.run.prefill.incarnation)

    @property
    def is_same_node(self) -> bool:
        return self.run.prefill.node == self.session.node.id

    def is_from_prefill(self, message: KvReady | Handoff) -> bool:
        """Of its own prefill instance: one that was asked and not chosen may compute it, too."""
        return message.prefill in ("", self.run.prefill.incarnation)

    @property
    def is_computed(self) -> bool:
        """Its prefill is done and it has steps before it, in the batch or on the way there."""
        is_let_in = self.verdict is not None and self.verdict.refusal is None
        return (is_let_in or self.handoff is not None) and not (self.is_through or self.is_stopped)

    def hint(self, hint: KvReady) -> None:
        if not self.is_from_prefill(hint):
            return
        if len(self._hints) < MAX_HINTS and self.handoff is None:
            self._hints.append(hint)
            self._news.set()

    def offer(self, handoff: Handoff) -> None:
        """The first one counts; a repeated one changes nothing."""
        if self.handoff is None:
            self.handoff = handoff
            self.handoff_s = monotonic_s()
            self._news.set()

    async def next_hints(self) -> list[KvReady] | None:
        """What was hinted since the last call; None when the hand-over is there."""
        await self._news.wait()
        self._news.clear()
        if self.handoff is not None:
            self._news.set()
            return None
        hints, self._hints = self._hints, []
        return hints

    async def wait_handoff(self) -> Handoff:
        while self.handoff is None:
            await self.next_hints()
        return self.handoff

    async def outcome(self, timeout_s: float) -> HandoffReply:
        """The answer to the hand-over, the same to whoever asks."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.settled.wait()
        except TimeoutError:
            raise ServiceError(
                ErrorCode.DEADLINE,
                f"{self.handle}: its KV was not taken over within {timeout_s:g} s",
                is_retryable=True,
            ) from None
        if self.reply is not None:
            return self.reply
        raise self.failure or ServiceError(
            ErrorCode.CANCELLED, f"{self.handle} was cancelled at the decode instance"
        )
