"""Sends residency events in order, coalesced over a few milliseconds. Decides nothing.

Both tiers of the node are in one sequence of events, each block in its best tier.

An event that cannot be sent is dropped: the gap in the sequence makes the index ask for the
inventory, which is the pool's own word.
"""

import asyncio
import logging
from collections.abc import Callable

from services.transfer.node_pool import NodePool
from shared.kv.block_pool import BlockPool
from shared.kv.residency_log import StoredBlocks
from shared.kv.tiered_residency import TieredChange, drain, page
from shared.messages import subjects
from shared.messages.common import NodeRef
from shared.messages.index import (
    InventoryReply,
    RemovedRun,
    ResidencyEvent,
    StoredRun,
    Tier,
)
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.transfer.residency")
COALESCE_S = 0.003
INVENTORY_PAGE_BLOCKS = 8_192


class ResidencyPublisher:
    """Publishes what the logs of the tiers collected; `run` is a task of the service."""

    def __init__(self, bus: Bus, node: NodeRef) -> None:
        self._bus = bus
        self._node = node
        self._poked = asyncio.Event()
        self._order = asyncio.Lock()
        self._pool: NodePool | None = None
        self.ssd: Callable[[], BlockPool | None] = lambda: None
        """What is on the SSD, None where there is no such tier."""
        self.seq = 0
        """Of the last event."""
        self.dropped_total = 0

    def poke(self) -> None:
        """The readable set may have changed."""
        self._poked.set()

    async def run(self, pool: NodePool) -> None:
        self._pool = pool
        while True:
            await self._poked.wait()
            await asyncio.sleep(COALESCE_S)
            self._poked.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send all that is known now."""
        pool = self._pool
        if pool is None:
            return
        async with self._order:
            for change in drain(pool.blocks, self.ssd()):
                self.seq += 1
                await self._publish(pool.root, change)

    async def inventory(self, pool: NodePool, cursor: int) -> InventoryReply:
        """A page that is true at its `seq`: everything up to it was sent before."""
        await self.flush()
        # No await from here on: the logs are empty and the page belongs to its number.
        runs, next_cursor = page(pool.blocks, self.ssd(), cursor, INVENTORY_PAGE_BLOCKS)
        return InventoryReply(
            incarnation=self._node.incarnation,
            root=pool.root,
            seq=self.seq,
            stored=[_stored_run(run, tier) for tier, run in runs],
            next_cursor=next_cursor,
        )

    async def _publish(self, root: bytes, change: TieredChange) -> None:
        event = ResidencyEvent(
            node=self._node.id,
            incarnation=self._node.incarnation,
            root=root,
            seq=self.seq,
            stored=[_stored_run(run, tier) for tier, run in change.stored],
            removed=_removed_runs(change),
        )
        try:
            await self._bus.publish(subjects.index_events(self._node.id), event)
        except ServiceError as error:
            if self.dropped_total == 0:
                log.warning("event %d is not sent, the index will resync: %s", event.seq, error)
            self.dropped_total += 1


def _stored_run(run: StoredBlocks, tier: Tier) -> StoredRun:
    return StoredRun(
        start=run.start,
        head=run.head,
        parent=run.parent or b"",
        keys=b"".join(run.keys),
        tier=tier,
    )


def _removed_runs(change: TieredChange) -> list[RemovedRun]:
    if not change.removed:
        return []
    return [
        RemovedRun(
            heads=b"".join(head for head, _ in change.removed),
            keys=b"".join(key for _, key in change.removed),
        )
    ]
