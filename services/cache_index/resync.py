"""Takes a node's inventory when events were missed or its writer starts: the pool is the truth.

At most four at a time, each after a short random wait, so that a restart does not storm the nodes.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from services.cache_index.mirror import Fill, Mirror
from services.cache_index.writer import IndexWriter
from shared.messages import subjects
from shared.messages.index import InventoryReply, InventoryRequest, StoredRun
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks

MAX_AT_ONCE = 4
GAP_PATIENCE_S = 0.1
"""An event that was only overtaken arrives within this time."""
PAGE_TIMEOUT_S = 2.0
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 5.0
MAX_PAGES = 100_000


class Resyncer:
    def __init__(
        self,
        bus: Bus,
        tasks: Tasks,
        mirror: Mirror,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._bus = bus
        self._tasks = tasks
        self._mirror = mirror
        self._clock = clock
        self._log = log
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._wanted: dict[str, bool] = {}
        """Nodes being looked after; True: whatever the mirror has."""
        self._in_flight: set[str] = set()
        self.writer: IndexWriter | None = None
        self.resyncs_total = 0

    def want_if_behind(self, node: str) -> None:
        """An event may be missing: look again soon, then ask the node."""
        if self._mirror.is_behind(node):
            self._start(node, is_needed=False)

    def want(self, node: str) -> None:
        """The inventory is needed whatever the mirror has."""
        self._start(node, is_needed=True)

    def _start(self, node: str, *, is_needed: bool) -> None:
        if node in self._in_flight:
            return  # what comes back will do, or it is tried again
        if node in self._wanted:
            self._wanted[node] |= is_needed
            return
        self._wanted[node] = is_needed
        self._tasks.start_contained(self._resync(node), name=f"resync {node}")

    async def _resync(self, node: str) -> None:
        backoff_s = FIRST_BACKOFF_S
        try:
            await asyncio.sleep(GAP_PATIENCE_S * (0.5 + random.random()))
            while self._is_due(node):
                async with self._room:
                    is_done = await self._take_inventory(node)
                if is_done and not self._mirror.is_behind(node):
                    return
                self._wanted[node] &= not is_done
                await asyncio.sleep(backoff_s * (0.5 + random.random()))
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
        finally:
            del self._wanted[node]

    def _is_due(self, node: str) -> bool:
        entry = self._mirror.registry.get(node)
        is_live = entry is not None and entry.is_live(self._clock())
        return is_live and (self._wanted[node] or self._mirror.is_behind(node))

    async def _take_inventory(self, node: str) -> bool:
        fill = self._mirror.begin_fill(node)
        if fill is None:
            return False
        self._in_flight.add(node)
        try:
            runs, seq = await self._pages(node, fill)
        except ServiceError as error:
            self._log.info("inventory of %s: %s; trying again", node, error.message)
            return False
        except _VoidFill:
            return False
        else:
            events = self._mirror.finish_fill(fill, seq)
            if events is None:
                return False
            self.resyncs_total += 1
            if self.writer is not None and self.writer.writes(node):
                self.writer.rewrite(node, runs, seq, events)
            return True
        finally:
            self._in_flight.discard(node)
            self._mirror.abandon_fill(fill)

    async def _pages(self, node: str, fill: Fill) -> tuple[list[StoredRun], int]:
        """All runs the node holds, and the sequence the first page was true at."""
        runs: list[StoredRun] = []
        seq: int | None = None
        cursor: int | None = 0
        for _ in range(MAX_PAGES):
            assert cursor is not None
            page = await self._bus.request(
                subjects.transfer(node, "inventory"),
                InventoryRequest(cursor=cursor),
                InventoryReply,
                timeout_s=PAGE_TIMEOUT_S,
            )
            if page.incarnation != fill.incarnation or not self._mirror.fill_runs(
                fill, page.stored
            ):
                raise _VoidFill
            # Later pages are truer; events from the first on are applied on top of all of them,
            # and the last event of a block decides.
            seq = page.seq if seq is None else seq
            runs.extend(page.stored)
            cursor = page.next_cursor
            if cursor is None:
                return runs, seq
        raise _VoidFill


class _VoidFill(Exception):
    """The node is another incarnation by now."""
