"""Questions of people and tools: what this cache-index knows, holds and has seen."""

from collections.abc import Callable, Iterator
from typing import Any

from services.cache_index import contents
from services.cache_index.collector import Collector
from services.cache_index.handlers import Handlers
from services.cache_index.mirror import Mirror
from services.cache_index.readings import readings_of
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.resync import Resyncer
from services.cache_index.writer import IndexWriter
from shared.kv.fingerprints import NUM_CLASSES
from shared.messages import subjects
from shared.messages.common import Empty, ErrorCode, NodeRef
from shared.messages.index import (
    ContentsReply,
    ContentsRequest,
    Holder,
    HoldersReply,
    HoldersRequest,
    HotPrefix,
    HotReply,
    HotRequest,
    IndexStats,
    PrintsReply,
    PrintsRequest,
)
from shared.runtime.errors import ServiceError
from shared.runtime.micro import Endpoint
from shared.telemetry.metric import Reading


class Inspection:
    def __init__(
        self,
        index_id: str,
        store: RedisStore,
        mirror: Mirror,
        writer: IndexWriter,
        resyncer: Resyncer,
        collector: Collector,
        handlers: Handlers,
        clock: Callable[[], float],
    ) -> None:
        self._id = index_id
        self._store = store
        self._mirror = mirror
        self._writer = writer
        self._resyncer = resyncer
        self._collector = collector
        self._handlers = handlers
        self._clock = clock
        self._redis_prints = contents.RedisPrints(store, clock)
        self.load_s = 0.0

    async def stats(self, _: Empty) -> IndexStats:
        return self.stats_now()

    def readings(self) -> Iterator[Reading]:
        return readings_of(self.stats_now())

    def stats_now(self) -> IndexStats:
        mirror, view = self._mirror, self._mirror.view
        nodes = mirror.blocks_by_node()
        return IndexStats(
            index=self._id,
            index_epoch=self._store.epoch,
            nodes=nodes,
            num_blocks=sum(nodes.values()),
            num_keys=view.num_keys,
            mirror_bytes=view.num_bytes,
            mirror_fill=view.fill,
            evicted_total=view.evicted_total,
            horizon=_horizon(view.horizon),
            redis_bytes=self._collector.redis_bytes,
            redis_horizon=_horizon(self._store.horizon),
            redis_evicted_total=self._collector.evicted_total,
            is_redis_up=self._store.is_up,
            num_pending=self._writer.num_pending,
            matches_total=self._handlers.matches_total,
            events_total=mirror.events_total,
            late_events_total=mirror.late_events_total,
            duplicates_total=mirror.duplicates_total,
            resyncs_total=self._resyncer.resyncs_total,
            gaps_total=mirror.gaps_total,
            num_expected=len(self._handlers.expected),
            load_s=self.load_s,
        )

    async def hot(self, request: HotRequest) -> HotReply:
        now_s = self._clock()
        return HotReply(
            prefixes=[
                HotPrefix(
                    root=one.root,
                    key=one.key,
                    num_blocks=one.num_blocks,
                    uses_per_s=one.uses_per_s,
                    nodes=[
                        node for node, _, _ in self._mirror.holders_of(one.root, one.key, now_s)
                    ],
                )
                for one in self._handlers.hot.top(request.limit, now_s)
            ]
        )

    async def holders(self, request: HoldersRequest) -> HoldersReply:
        found = self._mirror.holders_of(request.root, request.key, self._clock())
        return HoldersReply(
            holders=[
                Holder(node=NodeRef(id=node, incarnation=incarnation), tier=tier)
                for node, incarnation, tier in found
            ]
        )

    async def contents(self, request: ContentsRequest) -> ContentsReply:
        try:
            nodes = (
                await contents.of_mirror(self._mirror)
                if request.source == "mirror"
                else await contents.of_redis(self._store)
            )
        except StoreAway as error:
            raise _away(error) from error
        return ContentsReply(index=self._id, index_epoch=self._store.epoch, nodes=nodes)

    async def prints(self, request: PrintsRequest) -> PrintsReply:
        if request.source == "mirror":
            return contents.mirror_prints(self._mirror, request.node, request.cursor)
        try:
            return await self._redis_prints.page(request.node, request.cursor)
        except StoreAway as error:
            raise _away(error) from error

    def endpoints(self) -> list[Endpoint[Any, Any]]:
        own = subjects.cache_index
        return [
            Endpoint(
                "stats", subjects.INDEX_STATS, Empty, IndexStats, self.stats, "What one of us knows"
            ),
            Endpoint(
                "hot", subjects.INDEX_HOT, HotRequest, HotReply, self.hot, "Prefixes used most"
            ),
            Endpoint(
                "holders",
                subjects.INDEX_HOLDERS,
                HoldersRequest,
                HoldersReply,
                self.holders,
                "Which nodes hold a block",
            ),
            Endpoint(
                "own_stats",
                own(self._id, "stats"),
                Empty,
                IndexStats,
                self.stats,
                "What this cache-index knows",
            ),
            Endpoint(
                "contents",
                own(self._id, "contents"),
                ContentsRequest,
                ContentsReply,
                self.contents,
                "Counts and digests by node, of the mirror or of Redis",
                max_running=2,
            ),
            Endpoint(
                "prints",
                own(self._id, "prints"),
                PrintsRequest,
                PrintsReply,
                self.prints,
                "A page of a node's fingerprints, of the mirror or of Redis",
                max_running=2,
            ),
        ]


def _horizon(value: int) -> int | None:
    return value if value < NUM_CLASSES else None


def _away(error: StoreAway) -> ServiceError:
    return ServiceError(
        ErrorCode.INTERNAL,
        f"the index cannot reach Redis now ({error}); try again",
        is_retryable=True,
        retry_after_s=0.5,
    )
