"""Fills the mirror from Redis at start, page by page, while events are already coming in."""

import logging
from collections.abc import Callable

from services.cache_index.mirror import Fill, Mirror
from services.cache_index.node_registry import NodeLease
from services.cache_index.redis_store import NodeRecord, RedisStore
from services.cache_index.segments import numbers_in, print_of
from shared.messages.reports import LEASE_S

PROGRESS_EVERY_S = 2.0


class Loader:
    def __init__(
        self, store: RedisStore, mirror: Mirror, clock: Callable[[], float], log: logging.Logger
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._clock = clock
        self._log = log

    async def load(self) -> list[str]:
        """Load all nodes; returns those whose inventory is needed. Raises StoreAway.

        A node found here has the benefit of one lease: if it lives, it renews within it.
        """
        records = await self._store.nodes()
        fills = {record.number: fill for record in records if (fill := self._begin(record))}
        try:
            num_fields = await self._read_segments(fills)
            now = {record.node: record for record in await self._store.nodes()}
        except BaseException:
            for fill in fills.values():
                self._mirror.abandon_fill(fill)
            raise
        incomplete = [record.node for record in records if record.number not in fills]
        for record in records:
            fill = fills.get(record.number)
            if fill is None:
                continue
            current = now.get(record.node)
            # A record that changed while we read: its segments may be of both sessions.
            is_usable = current is not None and current.number == record.number
            if not is_usable or self._mirror.finish_fill(fill, record.seq) is None:
                self._mirror.abandon_fill(fill)
                incomplete.append(record.node)
            self._see(record)
        self._log.info("loaded %d replicas of %d nodes from Redis", num_fields, len(records))
        return incomplete

    def _begin(self, record: NodeRecord) -> Fill | None:
        self._see(record)
        return self._mirror.begin_fill(record.node) if record.is_complete else None

    def _see(self, record: NodeRecord) -> None:
        lease = NodeLease(
            node=record.node,
            incarnation=record.incarnation,
            root=record.root,
            registration=record.registration,
            index_epoch=self._store.epoch,
            lease_s=LEASE_S,
        )
        self._mirror.see_node(lease, None, self._clock())

    async def _read_segments(self, fills: dict[int, Fill]) -> int:
        num_fields = num_segments = 0
        said_s = self._clock()
        async for page in self._store.segments():
            prints: dict[int, list[int]] = {}
            for _, fields in page:
                for name, value in fields.items():
                    for number in numbers_in(value):
                        if number in fills:
                            prints.setdefault(number, []).append(print_of(name))
            for number, found in prints.items():
                self._mirror.fill_fingerprints(fills[number], found)
                num_fields += len(found)
            num_segments += len(page)
            if self._clock() - said_s >= PROGRESS_EVERY_S:
                said_s = self._clock()
                self._log.info("loading: %d replicas in %d segments", num_fields, num_segments)
        return num_fields
