"""Takes void numbers out of Redis and out of the mirror, in the background, within a budget."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable

import numpy as np

from services.cache_index.mirror import Mirror
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import Replicas, replicas_in, segment_of
from shared.kv.fingerprints import NUM_CLASSES

INTERVAL_S = 5.0
COLLECTOR_LEASE_MS = 30_000
DUTY = 0.1
"""Share of the time that a collection may use."""
SWEEP_PLACES = 1 << 16
RETIRE_AFTER_S = 60.0
"""A node that was silent for so long after its lease is taken out of Redis."""
KEEP_SHARE = 0.8
"""At its budget, so much of Redis is kept."""
LIFT_BELOW = 0.5
LIFT_EVERY_S = 300.0
Page = list[tuple[bytes, dict[bytes, bytes]]]


class Collector:
    def __init__(
        self,
        store: RedisStore,
        mirror: Mirror,
        clock: Callable[[], float],
        log: logging.Logger,
        *,
        redis_budget_bytes: int | None = None,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._clock = clock
        self._log = log
        self._id = secrets.token_hex(8)
        self._budget_bytes = redis_budget_bytes
        self._lifted_s = clock()
        self.redis_bytes: int | None = None
        self.evicted_total = 0
        """Replicas taken out of Redis because of its budget, by this process."""

    async def run(self) -> None:
        """A task of the service."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.sweep_mirror()
            try:
                await self.retire_silent()
                await self.keep_budget()
                await self.collect_if_due()
            except StoreAway:
                continue  # the next round tries again

    async def sweep_mirror(self) -> None:
        while self._mirror.view.needs_sweep:
            self._mirror.view.sweep(SWEEP_PLACES)
            await asyncio.sleep(0.01)

    async def retire_silent(self) -> None:
        for entry in self._mirror.registry.silent_for(RETIRE_AFTER_S, self._clock()):
            lease = entry.lease
            await self._store.retire(lease.node, lease.incarnation, lease.registration)
            self._mirror.forget_node(lease.node)
            self._log.info("node %s is gone and forgotten", lease.node)

    # --- the budget of Redis -------------------------------------------------------------------
    async def keep_budget(self) -> None:
        """Over it, the deepest blocks of all chains go from Redis; the mirrors keep them."""
        self.redis_bytes = await self._store.memory_bytes()
        budget = self._budget_bytes
        if budget is None:
            return
        if self.redis_bytes > budget:
            if await self._hold():
                await self._lower_horizon(self.redis_bytes, budget)
            return
        has_room = self._store.horizon < NUM_CLASSES and self.redis_bytes < LIFT_BELOW * budget
        is_due = self._clock() - self._lifted_s >= LIFT_EVERY_S
        if has_room and is_due and await self._hold():
            self._lifted_s = self._clock()
            await self._store.set_horizon(NUM_CLASSES)

    async def _lower_horizon(self, used_bytes: int, budget: int) -> None:
        by_class = np.zeros(NUM_CLASSES, np.int64)
        async for page in self._paced():
            by_class += np.bincount(replicas_in(page).classes, minlength=NUM_CLASSES)
        total = int(by_class.sum())
        wanted = int(total * KEEP_SHARE * budget / used_bytes)
        horizon = max(1, int(np.searchsorted(np.cumsum(by_class), wanted, "right")))
        horizon = min(horizon, self._store.horizon)
        await self._store.set_horizon(horizon)
        self._log.warning(
            "Redis uses %d MB of %d MB: blocks from depth class %d on are let go there",
            used_bytes >> 20, budget >> 20, horizon,
        )  # fmt: skip
        if await self._drop(lambda found: found.classes >= horizon):
            self._lifted_s = self._clock()

    # --- void numbers --------------------------------------------------------------------------
    async def collect_if_due(self) -> bool:
        """One whole pass over the segments when numbers became void since the last one."""
        voided, collected = await self._store.collection_due()
        if voided == collected or not await self._hold():
            return False
        watermark = await self._store.last_number()
        # Numbers only grow: one up to the watermark that no record has now is void for ever.
        live = np.array([record.number for record in await self._store.nodes()], np.uint32)
        dropped = await self._drop(
            lambda found: (found.numbers <= watermark) & ~np.isin(found.numbers, live),
            is_eviction=False,
        )
        if dropped is None:
            return False
        await self._store.set_collected(voided)
        if dropped:
            self._log.info("took %d void replicas out of Redis", dropped)
        return True

    async def _drop(
        self, is_void: Callable[[Replicas], "np.ndarray[tuple[int], np.dtype[np.bool_]]"],
        *, is_eviction: bool = True,
    ) -> int | None:  # fmt: skip
        """Takes replicas out; how many. None: another one collects."""
        dropped = 0
        async for page in self._paced():
            void: dict[bytes, tuple[set[int], bytes]] = {}
            for key, fields in page:
                found = replicas_in([(key, fields)])
                goes = is_void(found)
                if not goes.any():
                    continue
                numbers, prints = found.numbers[goes], found.prints[goes]
                known, packed = void.get(segment_of(key), (set(), b""))
                void[segment_of(key)] = (
                    known | set(numbers.tolist()),
                    packed + np.unique(prints).tobytes(),
                )
                dropped += len(prints)
            await self._store.collect(void)
            if not await self._hold():
                return None
        if is_eviction:
            self.evicted_total += dropped
        return dropped

    async def _paced(self) -> AsyncIterator[Page]:
        """All pages, at DUTY of the time."""
        started_s = self._clock()
        async for page in self._store.segments():
            yield page
            busy_s = self._clock() - started_s
            await asyncio.sleep(busy_s * (1 - DUTY) / DUTY)
            started_s = self._clock()

    async def _hold(self) -> bool:
        return await self._store.hold_collector(self._id, COLLECTOR_LEASE_MS)
