"""Servers, cache-indexes and questions to them: what tests of the index have in common."""

import logging
import secrets

from scripts.index.asking import IndexAsker
from scripts.index.verify import NodeComparison, verify
from services.cache_index.loader import Loader
from services.cache_index.mirror import Mirror
from services.cache_index.pending import PendingChanges
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import SegmentChange
from services.cache_index.service import CacheIndexService
from services.cache_index.settings import CacheIndexSettings
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.index import IndexStats, MatchReply, MatchRequest, ResidencyEvent
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.hosted import Hosted
from tests.support.servers import TestServer

LOG = logging.getLogger("test")
ROOT = b"r" * 16


def new_chain(num_blocks: int) -> bytes:
    return secrets.token_bytes(16 * num_blocks)


def changes_of(event: ResidencyEvent) -> list[SegmentChange]:
    pending = PendingChanges()
    pending.add(event)
    return pending.take(1_000)


class Index:
    """Servers of one test and the cache-indexes on them."""

    def __init__(
        self, bus: Bus, nats: TestServer, redis_server: TestServer, *, is_cluster: bool = False
    ) -> None:
        self.bus = bus
        self.nats = nats
        self.redis = redis_server
        self.is_cluster = is_cluster
        self.settings = CacheIndexSettings(
            nats_url=nats.url, redis_url=redis_server.url, redis_cluster=is_cluster
        )

    def host(self) -> Hosted[CacheIndexService]:
        return Hosted("cache-index", CacheIndexService(self.settings), self.settings)

    async def match(self, chain: bytes) -> dict[str, int]:
        reply = await self.bus.request(
            subjects.INDEX_MATCH, MatchRequest(root=ROOT, chain=chain), MatchReply, timeout_s=2
        )
        return {match.node.id: match.num_blocks for match in reply.nodes}

    async def stats(self) -> IndexStats:
        return await self.bus.request(subjects.INDEX_STATS, Empty(), IndexStats, timeout_s=2)

    async def in_redis(self, chain: bytes) -> dict[str, int]:
        """What a cache-index that starts now would load; only of nodes that are complete."""
        store, mirror = RedisStore(self.redis.url, is_cluster=self.is_cluster), Mirror()
        try:
            await store.probe()
            await Loader(store, mirror, monotonic_s, LOG).load()
        except StoreAway:
            return {}
        finally:
            await store.close()
        mirror.check_integrity()
        found = mirror.match(ROOT, chain, monotonic_s())
        return {match.node: match.num_blocks for match in found}

    async def until_match(self, chain: bytes, expected: dict[str, int]) -> None:
        async def is_so() -> bool:
            return await self.match(chain) == expected

        await until(is_so, what=f"match {expected}")

    async def until_in_redis(self, chain: bytes, expected: dict[str, int]) -> None:
        async def is_so() -> bool:
            return await self.in_redis(chain) == expected

        await until(is_so, what=f"{expected} in Redis")

    async def compare(self) -> list[NodeComparison]:
        """Redis, mirrors and inventories, once; raises ServiceError when somebody is away."""
        asker = IndexAsker(self.bus)
        return await verify(asker, await asker.indexes(), rounds=1)

    async def until_true(self, num_nodes: int, *, timeout_s: float = 30.0) -> float:
        """Until Redis and all mirrors equal the inventories of so many nodes; seconds it took."""
        started_s = monotonic_s()

        async def is_so() -> bool:
            try:
                found = await self.compare()
            except (ServiceError, IndexError):
                return False
            return len(found) == num_nodes and all(
                one.is_equal and not one.is_gone for one in found
            )

        await until(is_so, timeout_s=timeout_s, what="the index equals the truth")
        return monotonic_s() - started_s
