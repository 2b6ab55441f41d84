"""Frees slots before somebody needs them, off the way of requests: what goes first is evicted, or
moved to the SSD and then evicted.
"""

import asyncio

from services.transfer.node_pool import NodePool
from services.transfer.ssd_tier import SsdTier
from shared.kv.watermarks import Watermarks


class RoomKeeper:
    """`run` is a task of the service; it sleeps until the pool changes."""

    def __init__(self, pool: NodePool, marks: Watermarks, demote_to: SsdTier | None) -> None:
        self._pool = pool
        self._marks = marks
        self._tier = demote_to
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
            num_freed = self._demote(count) if self._tier else self._pool.blocks.evict(count)
            if not num_freed:
                return  # what is written now goes when it is there
            self._pool.on_change()
            await asyncio.sleep(0)

    def _demote(self, count: int) -> int:
        """Blocks without a copy on the SSD get one first; returns how many slots are free now."""
        assert self._tier is not None, "only with a tier to go to"
        num_freed = 0
        while num_freed < count:
            victim = self._pool.blocks.next_victim()
            if victim is None or victim.key is None:
                break
            chain = self._pool.blocks.path(victim.key)
            if self._tier.is_worth_writing(chain):
                # Held from now on, so the next victim is another one.
                if not self._tier.offer(chain):
                    break
                continue
            num_freed += self._pool.blocks.evict(1)
        return num_freed
