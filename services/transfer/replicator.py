"""Brings copies of other nodes' blocks here in the background: one at a time, in small steps, with
pauses, so that requests have the links for themselves most of the time.
"""

import asyncio
import itertools

from services.transfer.fetcher import Fetcher
from services.transfer.node_pool import NodePool
from shared.kv.block_keys import num_keys, take
from shared.messages.common import ErrorCode, FetchSource, NodeRef, RequestRef
from shared.messages.pool import FetchBlocks
from shared.messages.transfer import ReplicateReply, ReplicateRequest
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

OWNER = "replicate"
STEP_BYTES = 64 << 20
MAX_WAITING = 64
MAX_POOL_SHARE = 0.5
"""Of the slots, what one replication may fill: it must not push out all that is used here."""


class Replicator:
    """Calls wait for one another; `share` is the part of the time in which bytes move."""

    def __init__(self, pool: NodePool, fetcher: Fetcher, own: NodeRef, share: float) -> None:
        self._pool = pool
        self._fetcher = fetcher
        self._own = own
        self._share = share
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._ids = itertools.count(1)

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """As much of the leading run as comes in time; an error only when it cannot begin."""
        if self._num_waiting >= MAX_WAITING:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{self._num_waiting} replications wait here already",
                is_retryable=True,
            )
        started_s = monotonic_s()
        deadline_s = started_s + request.remaining_ms / 1000
        self._num_waiting += 1
        try:
            async with asyncio.timeout(request.remaining_ms / 1000), self._turn:
                return await self._bring(request, started_s, deadline_s)
        except TimeoutError:
            return ReplicateReply(num_blocks=0, seconds=monotonic_s() - started_s)
        finally:
            self._num_waiting -= 1

    async def _bring(
        self, request: ReplicateRequest, started_s: float, deadline_s: float
    ) -> ReplicateReply:
        handle = f"{OWNER}-{next(self._ids)}"
        cap = max(1, int(self._pool.blocks.counts.total * MAX_POOL_SHARE))
        wanted = min(num_keys(request.keys), cap)
        step = max(1, STEP_BYTES // self._pool.geometry.block_bytes)
        moved_bytes = num_blocks = 0
        try:
            for end in range(step, wanted + step, step):
                end = min(end, wanted)
                step_s = monotonic_s()
                remaining_ms = int((deadline_s - step_s) * 1000) - 1
                if remaining_ms < 1:
                    break
                reply = await self._fetcher.fetch(
                    OWNER, cap, _fetch(handle, request, end, remaining_ms)
                )
                num_blocks = len(reply.blocks.slots)
                moved_bytes += reply.fetched_bytes
                if num_blocks < end:
                    break
                if reply.fetched_bytes and end < wanted:
                    pause_s = (monotonic_s() - step_s) * (1 / self._share - 1)
                    await asyncio.sleep(min(pause_s, max(deadline_s - monotonic_s(), 0.0)))
        finally:
            self._pool.blocks.release(OWNER, handle)
            self._pool.on_change()
        return ReplicateReply(
            num_blocks=num_blocks, moved_bytes=moved_bytes, seconds=monotonic_s() - started_s
        )


def _fetch(handle: str, request: ReplicateRequest, end: int, remaining_ms: int) -> FetchBlocks:
    return FetchBlocks(
        handle=handle,
        ref=RequestRef(request_id=handle, gateway=OWNER, gateway_incarnation=OWNER),
        keys=take(request.keys, end),
        source=FetchSource(node=request.source, num_blocks=end),
        remaining_ms=remaining_ms,
        urgency="background",
    )
