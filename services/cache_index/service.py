"""Composition root of a cache-index: parts, subscriptions, and its one steady task."""

import asyncio
import logging

from services.cache_index.collector import Collector
from services.cache_index.handlers import Handlers
from services.cache_index.inspection import Inspection
from services.cache_index.loader import Loader
from services.cache_index.mirror import Mirror
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.resync import Resyncer
from services.cache_index.settings import CacheIndexSettings
from services.cache_index.writer import IndexWriter
from shared.messages import subjects
from shared.messages.index import Expected, Heat, NodeSeen, ResidencyEvent
from shared.runtime.bus import redacted
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.lifecycle import Context

KEEP_INTERVAL_S = 1.0
RETRY_S = 0.5
HEAT_INTERVAL_S = 1.0


class CacheIndexService:
    def __init__(self, settings: CacheIndexSettings) -> None:
        self._url = settings.redis_url
        self._log = logging.getLogger("moonpool.cache-index")
        self.store = RedisStore(
            settings.redis_url,
            is_cluster=settings.redis_cluster,
            options=settings.redis_options(),
        )
        self._poked = asyncio.Event()
        self.mirror = Mirror(settings.index_memory_bytes)
        self.collector = Collector(
            self.store,
            self.mirror,
            monotonic_s,
            self._log,
            redis_budget_bytes=settings.redis_budget_bytes,
        )
        self.resyncer: Resyncer | None = None
        self.writer: IndexWriter | None = None
        self.handlers: Handlers | None = None

    async def start(self, context: Context[CacheIndexSettings]) -> None:
        mirror = self.mirror
        resyncer = Resyncer(context.bus, context.tasks, mirror, monotonic_s, self._log)
        writer = IndexWriter(self.store, mirror, resyncer.want, self._log)
        resyncer.writer = writer
        self.resyncer, self.writer = resyncer, writer
        handlers = Handlers(
            context.id, context.bus, self.store, mirror, writer, resyncer, monotonic_s,
            self._poked.set,
        )  # fmt: skip
        inspection = Inspection(
            context.id, self.store, mirror, writer, resyncer, self.collector, handlers, monotonic_s
        )
        self.handlers = handlers
        context.meters.add("cache-index", inspection.readings)
        # Events first, Redis after: what is written while we read comes as an event too.
        await context.bus.subscribe(subjects.INDEX_EVENTS_ALL, ResidencyEvent, handlers.on_event)
        await context.bus.subscribe(subjects.INDEX_NODE_SEEN, NodeSeen, handlers.on_node_seen)
        await context.bus.subscribe(subjects.INDEX_EXPECTED, Expected, handlers.on_expected)
        await context.bus.subscribe(subjects.INDEX_HEAT, Heat, handlers.on_heat)
        await context.bus.flush()
        loader = Loader(self.store, mirror, monotonic_s, self._log)
        started_s = monotonic_s()
        for node in await self._load(loader):
            resyncer.want(node)
        inspection.load_s = monotonic_s() - started_s
        context.tasks.start_soon(writer.run(), name="writer")
        context.tasks.start_soon(self._keep(writer, resyncer), name="keep leases")
        context.tasks.start_soon(self.collector.run(), name="collector")
        context.tasks.start_soon(self._tell_heat(handlers), name="heat")
        await context.serve([*handlers.endpoints(), *inspection.endpoints()])
        context.state = "ready"

    async def drain(self) -> None:
        """Nothing waits here: each answer is ready when the question is read."""

    async def stop(self) -> None:
        if self.writer is not None:
            await self.writer.release_leases()
        await self.store.close()

    async def _load(self, loader: Loader) -> list[str]:
        """Wait for Redis as long as it takes, then load all of it."""
        is_waiting_said = False
        while True:
            try:
                await self.store.probe()
                return await loader.load()
            except StoreAway as error:
                if not is_waiting_said:
                    is_waiting_said = True
                    self._log.info("waiting for Redis at %s (%s)", redacted(self._url), error)
                await asyncio.sleep(RETRY_S)

    async def _tell_heat(self, handlers: Handlers) -> None:
        while True:
            await asyncio.sleep(HEAT_INTERVAL_S)
            handlers.expected.expire(monotonic_s())
            try:
                await handlers.tell_heat()
            except ServiceError as error:
                self._log.debug("heat is not told: %s", error)

    async def _keep(self, writer: IndexWriter, resyncer: Resyncer) -> None:
        """Watches Redis and its epoch, and holds the writer leases."""
        was_up = True
        epoch = self.store.epoch
        while True:
            self._poked.clear()
            for node in self.mirror.lift_horizon(monotonic_s()):
                resyncer.want(node)
            try:
                if await self.store.probe() != epoch:
                    epoch = self.store.epoch
                    self._log.warning("Redis lost the index (epoch %s now): building anew", epoch)
                    writer.forget_all()
                await writer.hold_leases(monotonic_s())
                writer.wake()
                if not was_up:
                    self._log.info("Redis is back")
                was_up = True
            except StoreAway as error:
                if was_up:
                    self._log.warning("Redis is away (%s): matching goes on from memory", error)
                was_up = False
            try:
                async with asyncio.timeout(KEEP_INTERVAL_S):
                    await self._poked.wait()
            except TimeoutError:
                continue
