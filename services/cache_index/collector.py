"""Takes void numbers out of Redis and out of the mirror, in the background, within a budget."""

import asyncio
import logging
import secrets
from collections.abc import Callable

from services.cache_index.mirror import Mirror
from services.cache_index.redis_store import RedisStore, StoreAway
from services.cache_index.segments import numbers_in

INTERVAL_S = 5.0
COLLECTOR_LEASE_MS = 30_000
DUTY = 0.1
"""Share of the time that a collection may use."""
SWEEP_KEYS = 2_000
RETIRE_AFTER_S = 60.0
"""A node that was silent for so long after its lease is taken out of Redis."""


class Collector:
    def __init__(
        self, store: RedisStore, mirror: Mirror, clock: Callable[[], float], log: logging.Logger
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._clock = clock
        self._log = log
        self._id = secrets.token_hex(8)

    async def run(self) -> None:
        """A task of the service."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.sweep_mirror()
            try:
                await self.retire_silent()
                await self.collect_if_due()
            except StoreAway:
                continue  # the next round tries again

    async def sweep_mirror(self) -> None:
        while self._mirror.view.needs_sweep:
            self._mirror.view.sweep(SWEEP_KEYS)
            await asyncio.sleep(0.01)

    async def retire_silent(self) -> None:
        for entry in self._mirror.registry.silent_for(RETIRE_AFTER_S, self._clock()):
            lease = entry.lease
            await self._store.retire(lease.node, lease.incarnation, lease.registration)
            self._mirror.forget_node(lease.node)
            self._log.info("node %s is gone and forgotten", lease.node)

    async def collect_if_due(self) -> bool:
        """One whole pass over the segments when numbers became void since the last one."""
        voided, collected = await self._store.collection_due()
        if voided == collected or not await self._hold():
            return False
        watermark = await self._store.last_number()
        # Numbers only grow: one up to the watermark that no record has now is void for ever.
        live = {record.number for record in await self._store.nodes()}
        dropped = 0
        started_s = self._clock()
        async for page in self._store.segments():
            void: dict[bytes, tuple[set[int], list[bytes]]] = {}
            for segment, fields in page:
                for name, value in fields.items():
                    found = {n for n in numbers_in(value) if n <= watermark and n not in live}
                    if found:
                        numbers, names = void.setdefault(segment, (set(), []))
                        numbers |= found
                        names.append(name)
                        dropped += len(found)
            await self._store.collect(void)
            busy_s = self._clock() - started_s
            await asyncio.sleep(busy_s * (1 - DUTY) / DUTY)
            started_s = self._clock()
            if not await self._hold():
                return False
        await self._store.set_collected(voided)
        if dropped:
            self._log.info("took %d void replicas out of Redis", dropped)
        return True

    async def _hold(self) -> bool:
        return await self._store.hold_collector(self._id, COLLECTOR_LEASE_MS)
