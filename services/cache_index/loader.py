"""Fills the mirror from Redis at start, page by page, while events are already coming in."""

import logging
from collections.abc import Callable, Mapping

import numpy as np

from services.cache_index.mirror import Fill, Mirror
from services.cache_index.node_registry import NodeLease
from services.cache_index.redis_store import NodeRecord, RedisStore
from services.cache_index.segments import Replicas, replicas_in
from shared.kv.fingerprints import NUM_CLASSES
from shared.messages.reports import LEASE_S

PROGRESS_EVERY_S = 2.0
LOAD_KEYS = 2_048
"""Hashes read at once."""


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
        started_s = self._clock()
        records = await self._store.nodes()
        fills = {record.number: fill for record in records if (fill := self._begin(record))}
        try:
            num_replicas = await self._read_segments(fills)
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
        seconds = self._clock() - started_s
        self._log.info(
            "loaded %d blocks, %d replicas, of %d nodes from Redis in %.1f s",
            self._mirror.view.num_keys, num_replicas, len(records), seconds,
        )  # fmt: skip
        if self._store.horizon < NUM_CLASSES:
            # Redis has no room for deep blocks: only the nodes know them.
            return [record.node for record in records]
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

    async def _read_segments(self, fills: Mapping[int, Fill]) -> int:
        num_replicas = num_segments = 0
        started_s = said_s = self._clock()
        num_hashes = await self._store.num_hashes()
        async for page in self._store.segments(LOAD_KEYS):
            found = replicas_in(page)
            if not num_segments:
                num_fields = sum(len(fields) for _, fields in page)
                self._mirror.view.reserve(num_fields * num_hashes // max(len(page), 1))
            for number, of_node in by_number(found).items():
                fill = fills.get(number)
                if fill is not None:
                    self._mirror.fill_replicas(fill, of_node)
            num_replicas += len(found)
            num_segments += len(page)
            now_s = self._clock()
            if now_s - said_s >= PROGRESS_EVERY_S:
                said_s = now_s
                num_blocks = self._mirror.view.num_keys
                self._log.info(
                    "loading: %d blocks, %d replicas in %d segments, %.0f blocks/s",
                    num_blocks, num_replicas, num_segments, num_blocks / (now_s - started_s),
                )  # fmt: skip
        return num_replicas


def by_number(found: Replicas) -> dict[int, Replicas]:
    """The replicas of each number."""
    if not len(found):
        return {}
    order = np.argsort(found.numbers, kind="stable")
    numbers, starts = np.unique(found.numbers[order], return_index=True)
    return {
        int(number): Replicas(
            found.prints[rows], found.numbers[rows], found.classes[rows], found.is_on_disk[rows]
        )
        for number, rows in zip(numbers, np.split(order, starts[1:]), strict=True)
    }
