"""Who waits for slots of this pool, and in what order they get them. Holds no slots itself.

All at once or none; a run of blocks that is brought from elsewhere takes what there is when it is
its turn. The oldest is served first. When it has waited for PASS_AFTER_S, others that
fit may pass it: what it lacks may be held by one of them until that one goes on.
"""

import asyncio
from dataclasses import dataclass

from shared.kv.block_pool import BlockPool
from shared.kv.pool_values import HeldBlock, Refusal
from shared.runtime.clock import monotonic_s

PASS_AFTER_S = 1.0
WANTED_AFTER_S = 1.0
TAKE_WAIT_S = 1.5
"""Of one that takes what there is: by then it may pass all that waited before it."""


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: str
    handle: str
    num_slots: int
    cap: int
    since_s: float
    given: asyncio.Future[list[HeldBlock]]
    is_partial: bool = False
    """Takes fewer than `num_slots` where there are no more."""
    refusal: Refusal | None = None
    """The last one; None: it was not its turn yet."""


class SlotLine:
    """The line of one pool; the pool says when slots have come free."""

    def __init__(self, blocks: BlockPool) -> None:
        self._blocks = blocks
        self._waiters: list[_Waiter] = []
        self._is_serve_due = False
        blocks.on_room = self._poke

    async def allocate(
        self, owner: str, handle: str, num_slots: int, cap: int, wait_s: float
    ) -> list[HeldBlock] | Refusal:
        """WRITING slots for the handle; the refusal when there were none for so long."""
        future: asyncio.Future[list[HeldBlock]] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(owner, handle, num_slots, cap, monotonic_s(), future)
        return await self._wait(waiter, wait_s)

    async def take(
        self, owner: str, handle: str, num_slots: int, cap: int, wait_s: float
    ) -> list[HeldBlock]:
        """Up to so many WRITING slots, as many as there are when it is this handle's turn.

        Waits only for others that came before, TAKE_WAIT_S at most; not for slots.
        """
        future: asyncio.Future[list[HeldBlock]] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(owner, handle, num_slots, cap, monotonic_s(), future, is_partial=True)
        given = await self._wait(waiter, min(wait_s, TAKE_WAIT_S))
        return [] if isinstance(given, Refusal) else given

    async def _wait(self, waiter: _Waiter, wait_s: float) -> list[HeldBlock] | Refusal:
        loop = asyncio.get_running_loop()
        self._waiters.append(waiter)
        self._serve()
        if waiter.given.done():
            return waiter.given.result()
        passing = loop.call_later(PASS_AFTER_S, self._serve)
        try:
            if wait_s > 0 or waiter.given.done():
                async with asyncio.timeout(wait_s or None):
                    return await waiter.given
        except TimeoutError:
            if waiter.given.done() and not waiter.given.cancelled():
                return waiter.given.result()
        finally:
            passing.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._poke()  # the next may fit
        available = self._blocks.num_available(waiter.owner, waiter.cap)
        return waiter.refusal or Refusal("pool_full", waiter.num_slots, available)

    def is_wanted(self, handle: str) -> bool:
        """Whether a request that goes before this one has waited here for long."""
        before_s = monotonic_s() - WANTED_AFTER_S
        return any(
            waiter.since_s <= before_s and rank(waiter.handle) < rank(handle)
            for waiter in self._waiters
        )

    def _all_there_are(self, waiter: _Waiter) -> list[HeldBlock]:
        available = self._blocks.num_available(waiter.owner, waiter.cap)
        count = min(waiter.num_slots, available)
        if not count:
            return []
        given = self._blocks.allocate(waiter.owner, waiter.handle, count, waiter.cap)
        assert isinstance(given, list), "as many as there are were asked for"
        return given

    def _may_pass(self, waiter: _Waiter) -> bool:
        return monotonic_s() - waiter.since_s >= PASS_AFTER_S

    def _poke(self) -> None:
        """There may be room: look once, when the caller is done."""
        if self._waiters and not self._is_serve_due:
            self._is_serve_due = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serve_due = False
        for waiter in list(self._waiters):
            if waiter.given.done():
                continue  # given up, and not yet out of the line
            if waiter.is_partial:
                self._waiters.remove(waiter)
                waiter.given.set_result(self._all_there_are(waiter))
                continue
            given = self._blocks.allocate(waiter.owner, waiter.handle, waiter.num_slots, waiter.cap)
            if not isinstance(given, Refusal):
                self._waiters.remove(waiter)
                waiter.given.set_result(given)
                continue
            waiter.refusal = given
            if given.reason == "pool_full" and not self._may_pass(waiter):
                return  # a full share of its own keeps nobody else waiting


def rank(handle: str) -> tuple[int, str]:
    """The order in which requests give way, the same on every node: who was tried more often goes
    first, then by name. Of two that wait for one another exactly one gives way."""
    name, _, attempt = handle.rpartition("/")
    return (-int(attempt), name) if attempt.isdecimal() else (0, handle)
