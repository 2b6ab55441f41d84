"""What a mirror or Redis has of every node, for comparing: counts, digests and fingerprints.

Read-only, in pieces, so that matching goes on meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np

from services.cache_index.mirror import Mirror
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import Replicas, replicas_in
from shared.kv.fingerprints import as_prints
from shared.kv.print_digest import PrintDigest
from shared.kv.print_table import Prints
from shared.messages.common import NodeRef
from shared.messages.index import NodeContents, PrintsReply

MAX_AGE_S = 60.0
PAGE_PRINTS = 100_000
"""Of a reply: 800 kB."""


async def of_mirror(mirror: Mirror) -> list[NodeContents]:
    """Each node's is true at its `seq`: a node is read without a break."""
    found = []
    for node in [name for name, *_ in mirror.nodes()]:
        for _, incarnation, holder, seq in [one for one in mirror.nodes() if one[0] == node]:
            digest = PrintDigest()
            for _, prints in mirror.view.prints_of(holder):
                digest.add(prints)
            found.append(_contents(node, incarnation, seq, digest))
        await asyncio.sleep(0)
    return found


async def of_redis(store: RedisStore) -> list[NodeContents]:
    """What a cache-index that starts now would load."""
    records = {record.number: record for record in await store.nodes() if record.is_complete}
    digests = {number: PrintDigest() for number in records}
    async for replicas in _replicas_in_redis(store):
        for number, digest in digests.items():
            digest.add(as_prints(replicas.prints[replicas.numbers == number]))
    return [
        _contents(record.node, record.incarnation, record.seq, digests[number])
        for number, record in sorted(records.items(), key=lambda item: item[1].node)
    ]


async def _replicas_in_redis(store: RedisStore) -> AsyncIterator[Replicas]:
    """Each segment once: a scan may name one twice."""
    seen: set[bytes] = set()
    async for page in store.segments():
        fresh = [(key, fields) for key, fields in page if key not in seen]
        seen.update(key for key, _ in fresh)
        yield replicas_in(fresh)
        await asyncio.sleep(0)


def mirror_prints(mirror: Mirror, node: str, cursor: int) -> PrintsReply:
    """The cursor carries the generation of the table: blocks move when it grows."""
    known = next((one for one in mirror.nodes() if one[0] == node), None)
    if known is None:
        return PrintsReply()
    pages = mirror.view.prints_of(known[2], cursor & 0xFFFF_FFFF)
    following, prints = next(pages, (0, np.zeros(0, np.uint64)))
    generation = mirror.view.generation
    if cursor and cursor >> 32 != generation:
        return PrintsReply(is_void=True)
    is_last = next(pages, None) is None
    return PrintsReply(
        prints=prints.tobytes(), next_cursor=None if is_last else generation << 32 | following
    )


class RedisPrints:
    """Fingerprints of one node in Redis, read once and kept for the pages that follow."""

    def __init__(self, store: RedisStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._node = ""
        self._read_s = 0.0
        self._prints: Prints = np.zeros(0, np.uint64)

    async def page(self, node: str, cursor: int) -> PrintsReply:
        if cursor == 0:
            self._prints = await self._read(node)
            self._node, self._read_s = node, self._clock()
        elif self._node != node or self._clock() > self._read_s + MAX_AGE_S:
            return PrintsReply(is_void=True)
        end = cursor + PAGE_PRINTS
        prints = self._prints[cursor:end]
        return PrintsReply(
            prints=prints.tobytes(), next_cursor=end if end < len(self._prints) else None
        )

    async def _read(self, node: str) -> Prints:
        record = await self._store.node(node)
        if record is None or not record.is_complete:
            return np.zeros(0, np.uint64)
        pieces = [
            as_prints(replicas.prints[replicas.numbers == record.number])
            async for replicas in _replicas_in_redis(self._store)
        ]
        return np.concatenate([np.zeros(0, np.uint64), *pieces])


def _contents(node: str, incarnation: str, seq: int, digest: PrintDigest) -> NodeContents:
    return NodeContents(
        node=NodeRef(id=node, incarnation=incarnation),
        seq=seq,
        num_blocks=digest.num_blocks,
        digest=digest.text,
    )
