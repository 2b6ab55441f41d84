"""Whose bytes move when: bounded for each peer, what is waited for first, the rest under a share.

Owns the counts of bytes in flight; moves none.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from shared.runtime.clock import monotonic_s

MAX_PEER_BYTES = 256 << 20
"""In flight from one peer; one call alone may be larger."""


class Urgency(IntEnum):
    """What goes first."""

    STREAM = 0
    """A decode waits for layers."""
    REQUEST = 1
    """A request that is placed waits for its prefix."""
    BACKGROUND = 2
    """Replication: nobody waits."""


@dataclass(order=True, slots=True)
class _Waiter:
    urgency: Urgency
    number: int
    num_bytes: int = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Flow:
    """Used on the loop. `background_share` is the part of the time that replication may take."""

    def __init__(
        self,
        *,
        max_peer_bytes: int = MAX_PEER_BYTES,
        background_share: float = 0.25,
        now_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self._max_peer_bytes = max_peer_bytes
        self._share = background_share
        self._now_s = now_s
        self._in_flight: Counter[str] = Counter()
        self._moved: Counter[str] = Counter()
        self._waiting: dict[str, list[_Waiter]] = {}
        self._numbers = itertools.count()
        self._background = asyncio.Lock()
        self._background_from_s = 0.0
        self._foreground_turns = 0

    @property
    def bytes_in_flight(self) -> int:
        return self._in_flight.total()

    @property
    def by_peer(self) -> dict[str, int]:
        return {peer: count for peer, count in self._in_flight.items() if count}

    @property
    def moved_by_peer(self) -> dict[str, int]:
        """Bytes of all turns that ended well."""
        return dict(self._moved)

    @asynccontextmanager
    async def turn(self, peer: str, num_bytes: int, urgency: Urgency) -> AsyncIterator[None]:
        """May move `num_bytes` from `peer` now. Waits for its turn; a time-out is the caller's."""
        if urgency is not Urgency.BACKGROUND:
            self._foreground_turns += 1
            async with self._room(peer, num_bytes, urgency):
                yield
            return
        async with self._background:  # one at a time, so that its share is one
            await self._wait_for_share()
            started_s, turns_before = self._now_s(), self._foreground_turns
            try:
                async with self._room(peer, num_bytes, urgency):
                    yield
            finally:
                busy = self._in_flight.total() or self._foreground_turns != turns_before
                if busy:
                    took_s = self._now_s() - started_s
                    pause_s = took_s * (1 - self._share) / self._share
                    self._background_from_s = self._now_s() + pause_s

    @asynccontextmanager
    async def turn_within(
        self, timeout_s: float, peer: str, num_bytes: int, urgency: Urgency
    ) -> AsyncIterator[None]:
        """As `turn`; TimeoutError when it does not come in time. What is done in it has its own."""
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(timeout_s):
                await stack.enter_async_context(self.turn(peer, num_bytes, urgency))
            yield

    async def _wait_for_share(self) -> None:
        left_s = self._background_from_s - self._now_s()
        if left_s > 0:
            await asyncio.sleep(left_s)  # nobody moves it on: background goes one at a time

    @asynccontextmanager
    async def _room(self, peer: str, num_bytes: int, urgency: Urgency) -> AsyncIterator[None]:
        if self._waiting.get(peer) or not self._fits(peer, num_bytes):
            await self._queue(peer, num_bytes, urgency)
        else:
            self._in_flight[peer] += num_bytes
        try:
            yield
            self._moved[peer] += num_bytes
        finally:
            self._give_back(peer, num_bytes)

    async def _queue(self, peer: str, num_bytes: int, urgency: Urgency) -> None:
        """Until the bytes are counted as this caller's."""
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(urgency, next(self._numbers), num_bytes, turn)
        heapq.heappush(self._waiting.setdefault(peer, []), waiter)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(peer, num_bytes)  # it came just as we left
            else:
                self._withdraw(peer, waiter)
            raise

    def _withdraw(self, peer: str, waiter: _Waiter) -> None:
        """Out of the line, unless `_admit` has passed over it since it was cancelled."""
        waiting = self._waiting.get(peer, [])
        if waiter in waiting:
            waiting.remove(waiter)
            heapq.heapify(waiting)
        self._admit(peer)

    def _give_back(self, peer: str, num_bytes: int) -> None:
        self._in_flight[peer] -= num_bytes
        if not self._in_flight[peer]:
            del self._in_flight[peer]
        self._admit(peer)

    def _admit(self, peer: str) -> None:
        waiting = self._waiting.get(peer, [])
        while waiting and self._fits(peer, waiting[0].num_bytes):
            waiter = heapq.heappop(waiting)
            if not waiter.turn.done():
                self._in_flight[peer] += waiter.num_bytes
                waiter.turn.set_result(None)
        if not waiting:
            self._waiting.pop(peer, None)

    def _fits(self, peer: str, num_bytes: int) -> bool:
        now = self._in_flight.get(peer, 0)
        return now == 0 or now + num_bytes <= self._max_peer_bytes
