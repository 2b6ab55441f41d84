"""One attempt at a prompt, from its reservation to its hand-over."""

import asyncio
import contextlib

from shared.messages.common import CacheMode, ErrorInfo, FetchSource, InstanceRef
from shared.messages.prefill import PrefillRun, Reserve
from shared.worker.attempts import Attempt
from shared.worker.early_slots import EarlySlots
from shared.worker.pool_session import PoolSession
from shared.worker.prefix import Prefix
from shared.worker.token_sender import TokenSender


class PrefillJob(Attempt):
    """What is known of the prompt so far, and what is held for it."""

    def __init__(self, reserve: Reserve, session: PoolSession, now_s: float) -> None:
        super().__init__(reserve.ref)
        self.session = session
        self.num_tokens = reserve.num_tokens
        self.expected_uncached = max(reserve.num_tokens - reserve.cached_tokens, 1)
        slo_ms = reserve.ttft_slo_ms
        self.due_s = None if slo_ms is None else now_s + slo_ms / 1e3
        """When its TTFT objective ends, on our clock."""
        tbt_ms = reserve.judged_tbt_ms
        self.judged_tbt_s = None if tbt_ms is None else tbt_ms / 1e3
        """Decode judges by it before token 0; None: it does not."""
        self.refusal: ErrorInfo | None = None
        """Decode's: what was computed is of no use to the client."""
        self.chain: bytes = reserve.chain
        self.source: FetchSource | None = reserve.source
        self.cache: CacheMode = reserve.cache
        self.prompt_logprobs: int | None = None
        """So many likely tokens beside the log probability of each one; None: not wanted."""
        self.run: asyncio.Future[PrefillRun] = asyncio.get_running_loop().create_future()
        self.decode: InstanceRef | None = None
        """Who takes it over: as the run says, and another one once its gateway names that."""
        self.moved = asyncio.Event()
        """It was named another one."""
        self.came_early = False
        """The run came with the reservation: whom it names may not have promised anything."""
        self.run_s = 0.0
        """When the run came, on our clock."""
        self.prefix: Prefix | None = None
        """None: not loaded yet, or given up to make room."""
        self.held_s = 0.0
        """When it was loaded, on our clock."""
        self.may_look_again = True
        """In its turn; not once blocks of the pool turned out to change while they are read."""
        self.early_slots: EarlySlots | None = None
        """Asked for before its turn; taken then, or given up."""
        self.has_slots = False
        """From then on its prefix cannot be given up."""
        self.sender: TokenSender | None = None
        self.first_token: int | None = None
        """The one that the gateway was given."""

    @property
    def expected_cached_tokens(self) -> int:
        """As it was placed: what is at hand, comes by fetch or is computed before it."""
        return self.num_tokens - self.expected_uncached

    @property
    def reads_cache(self) -> bool:
        """A row that was not computed scores no token."""
        return self.cache == "on" and self.prompt_logprobs is None

    @property
    def holds_unstarted(self) -> bool:
        """Something of the pool is held for it, and can be given up without loss."""
        holds = self.prefix is not None or self.early_slots is not None
        return holds and not self.has_slots

    def give_up_early(self) -> None:
        """What is asked for or held under its handle; releasing that is up to the caller."""
        self.prefix = None
        if self.early_slots is not None:
            self.early_slots.forget()
            self.early_slots = None

    @property
    def publishes(self) -> bool:
        return self.cache != "off"

    def take(self, run: PrefillRun) -> None:
        """What the reservation did not say; a prefix held for nothing is not used."""
        if (not self.chain and run.chain) or run.cache != self.cache:
            self.prefix = None
        self.chain, self.cache = run.chain, run.cache
        self.prompt_logprobs = run.prompt_logprobs
        self.source = self.source or run.source
        self.decode = run.decode

    async def is_moved_from(self, decode: InstanceRef, timeout_s: float) -> bool:
        """Whether another than `decode` takes it over, or is named within this time."""
        if self.decode == decode:
            self.moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.moved.wait()
        return self.decode != decode
