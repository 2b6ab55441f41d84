"""Questions to cache-indexes and nodes, over NATS alone."""

from collections.abc import AsyncIterator
from typing import Literal

import numpy as np

from shared.kv.fingerprints import fingerprints
from shared.kv.print_table import Prints
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.index import (
    ContentsReply,
    ContentsRequest,
    HoldersReply,
    HoldersRequest,
    HotReply,
    HotRequest,
    IndexStats,
    InventoryReply,
    InventoryRequest,
    MatchReply,
    MatchRequest,
    PrintsReply,
    PrintsRequest,
)
from shared.messages.micro import MicroPing
from shared.runtime.bus import Bus

GATHER_S = 0.5
ASK_TIMEOUT_S = 2.0
CONTENTS_TIMEOUT_S = 120.0
"""Redis is read whole for it."""
ROLE = "cache-index"
Source = Literal["mirror", "redis"]


class ChangedMeanwhile(Exception):
    """Pages of one answer do not belong together; ask again."""


class IndexAsker:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def indexes(self) -> list[str]:
        """Ids of the cache-indexes that answer."""
        pings = await self._bus.gather(subjects.MICRO_PING, Empty(), MicroPing, within_s=GATHER_S)
        return sorted(ping.name_of for ping in pings if ping.role == ROLE)

    async def stats(self, index: str) -> IndexStats:
        subject = subjects.cache_index(index, "stats")
        return await self._bus.request(subject, Empty(), IndexStats, timeout_s=ASK_TIMEOUT_S)

    async def match(self, root: bytes, chain: bytes) -> MatchReply:
        return await self._bus.request(
            subjects.INDEX_MATCH,
            MatchRequest(root=root, chain=chain),
            MatchReply,
            timeout_s=ASK_TIMEOUT_S,
        )

    async def holders(self, root: bytes, key: bytes) -> HoldersReply:
        return await self._bus.request(
            subjects.INDEX_HOLDERS,
            HoldersRequest(root=root, key=key),
            HoldersReply,
            timeout_s=ASK_TIMEOUT_S,
        )

    async def hot(self, limit: int) -> HotReply:
        return await self._bus.request(
            subjects.INDEX_HOT, HotRequest(limit=limit), HotReply, timeout_s=ASK_TIMEOUT_S
        )

    async def contents(self, index: str, source: Source) -> ContentsReply:
        return await self._bus.request(
            subjects.cache_index(index, "contents"),
            ContentsRequest(source=source),
            ContentsReply,
            timeout_s=CONTENTS_TIMEOUT_S,
        )

    async def prints(self, index: str, source: Source, node: str) -> Prints:
        """All that this index, or Redis, has of a node. Raises ChangedMeanwhile."""
        pieces = [np.zeros(0, np.uint64)]
        cursor: int | None = 0
        while cursor is not None:
            reply = await self._bus.request(
                subjects.cache_index(index, "prints"),
                PrintsRequest(source=source, node=node, cursor=cursor),
                PrintsReply,
                timeout_s=CONTENTS_TIMEOUT_S,
            )
            if reply.is_void:
                raise ChangedMeanwhile(f"{source} of {index}")
            pieces.append(np.frombuffer(reply.prints, np.uint64))
            cursor = reply.next_cursor
        return np.concatenate(pieces)

    async def inventory(self, node: str) -> tuple[str, Prints]:
        """The incarnation and all blocks of a node, from its own pool."""
        incarnation = ""
        pieces = [np.zeros(0, np.uint64)]
        async for page in self._pages(node):
            if incarnation not in ("", page.incarnation):
                raise ChangedMeanwhile(node)
            incarnation = page.incarnation
            pieces.extend(fingerprints(run.keys) for run in page.stored)
        return incarnation, np.unique(np.concatenate(pieces))

    async def _pages(self, node: str) -> AsyncIterator[InventoryReply]:
        cursor: int | None = 0
        while cursor is not None:
            page = await self._bus.request(
                subjects.transfer(node, "inventory"),
                InventoryRequest(cursor=cursor),
                InventoryReply,
                timeout_s=ASK_TIMEOUT_S,
            )
            yield page
            cursor = page.next_cursor
