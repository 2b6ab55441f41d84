"""Frees slots before somebody needs them, off the way of requests: what goes first is evicted, or
moved to the SSD and then evicted.

Without an SSD to move to, of what goes first that goes before which other nodes have too: the last
copy in the cluster stays while there are colder spare ones. Without an answer of the index in time
the policy decides alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from services.transfer.node_pool import NodePool
from services.transfer.ssd_tier import SsdTier
from shared.kv.ids import BlockKey
from shared.kv.spare_copies import spare_first
from shared.kv.watermarks import Watermarks
from shared.runtime.clock import monotonic_s

LOOK_AHEAD = 4
"""How many of the next victims are looked at for each that goes."""
ASK_AGAIN_S = 5.0
"""After the index did not answer."""
AskCopies = Callable[[Sequence[BlockKey]], Awaitable[Sequence[int] | None]]
"""How many other nodes hold each of these; None: it could not be known in time."""


class RoomKeeper:
    """`run` is a task of the service; it sleeps until the pool changes."""

    def __init__(
        self,
        pool: NodePool,
        marks: Watermarks,
        demote_to: SsdTier | None,
        ask_copies: AskCopies | None = None,
    ) -> None:
        self._pool = pool
        self._marks = marks
        self._tier = demote_to
        self._ask_copies = ask_copies
        self._ask_from_s = 0.0
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """The pool may have less room than before, or more that can go."""
        self._poked.set()

    async def run(self) -> None:
        while True:
            await self._poked.wait()
            self._poked.clear()
            if self._marks.is_below(self._pool.blocks.counts):
                await self._make_room()

    async def _make_room(self) -> None:
        """In small batches, so that requests come between."""
        while count := self._marks.batch(self._pool.blocks.counts):
            num_freed = self._demote(count) if self._tier else await self._evict(count)
            if not num_freed:
                return  # what is written now goes when it is there
            self._pool.on_change()
            await asyncio.sleep(0)

    async def _evict(self, count: int) -> int:
        blocks = self._pool.blocks
        if self._ask_copies is None or monotonic_s() < self._ask_from_s:
            return blocks.evict(count)
        victims = blocks.next_victims(LOOK_AHEAD * count)
        num_copies = await self._ask_copies([victim.key for victim in victims])
        if num_copies is None:
            self._ask_from_s = monotonic_s() + ASK_AGAIN_S
            return blocks.evict(count)
        # The pool went on meanwhile: what is held or gone by now is passed over.
        num_freed = blocks.evict_blocks(spare_first(victims, num_copies, count))
        return num_freed or blocks.evict(min(1, self._marks.batch(blocks.counts)))

    def _demote(self, count: int) -> int:
        """Blocks without a copy on the SSD get one first; returns how many slots are free now."""
        assert self._tier is not None, "only with a tier to go to"
        num_freed = 0
        while num_freed < count:
            victims = self._pool.blocks.next_victims(1)
            if not victims:
                break
            chain = self._pool.blocks.path(victims[0].key)
            if self._tier.is_worth_writing(chain):
                # Held from now on, so the next victim is another one.
                if not self._tier.offer(chain):
                    break
                continue
            num_freed += self._pool.blocks.evict(1)
        return num_freed
