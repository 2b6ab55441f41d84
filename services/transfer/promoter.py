"""Holds the leading run of a chain in DRAM, bringing what is only on the SSD. Never fails, only
holds less: what is late, damaged or finds no slot ends the run.

Blocks that one request brings already are waited for by the others.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.transfer.node_pool import NodePool
from services.transfer.ssd_tier import SsdTier
from services.transfer.threads import settled
from shared.kv.ids import BlockKey
from shared.kv.pool_values import HeldBlock, SealItem
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.transfer.ssd")


@dataclass(slots=True)
class Promoted:
    """What it took to bring blocks from the SSD."""

    num_blocks: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Job:
    owner: str
    handle: str
    cap: int
    keys: Sequence[BlockKey]
    deadline_s: float
    num_brought: int = 0


@dataclass(slots=True)
class _Movement:
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Promoter:
    """Owns the movements from SSD to DRAM that run."""

    def __init__(self, pool: NodePool, tier: SsdTier | None) -> None:
        self._pool = pool
        self._tier = tier
        self._moving: dict[BlockKey, _Movement] = {}

    async def hold_verified(
        self, owner: str, handle: str, keys: Sequence[BlockKey], cap: int, deadline_s: float
    ) -> tuple[list[HeldBlock], Promoted]:
        """As NodePool.lease_verified, with what the SSD has beyond."""
        run = await self._pool.lease_verified(owner, handle, keys, cap)
        promoted = await self.bring(owner, handle, keys, cap, deadline_s)
        if self._pool.blocks.num_leading(keys) > len(run):
            run = await self._pool.lease_verified(owner, handle, keys, cap)
        return run, promoted

    async def bring(
        self, owner: str, handle: str, keys: Sequence[BlockKey], cap: int, deadline_s: float
    ) -> Promoted:
        """Blocks of `keys` from the SSD into the pool; the handle holds those that came."""
        tier = self._tier
        if tier is None or not self._is_more_there(tier, keys):
            return Promoted()
        started_s = monotonic_s()
        job = _Job(owner, handle, cap, keys, deadline_s)
        while self._is_more_there(tier, keys) and monotonic_s() < deadline_s:
            start = self._pool.blocks.num_leading(keys)
            other = self._moving.get(keys[start])
            if other is None:
                await self._move(tier, job, start)
                break
            try:
                async with asyncio.timeout(deadline_s - monotonic_s()):
                    await other.ended.wait()
            except TimeoutError:
                break
        return Promoted(job.num_brought, monotonic_s() - started_s)

    def _is_more_there(self, tier: SsdTier, keys: Sequence[BlockKey]) -> bool:
        return tier.num_leading(keys) > self._pool.blocks.num_leading(keys)

    async def _move(self, tier: SsdTier, job: _Job, start: int) -> None:
        movement = _Movement()
        wanted = job.keys[start : tier.num_leading(job.keys)]
        for key in wanted:
            self._moving[key] = movement
        reading, stored = tier.hold(job.keys)
        try:
            await self._read(tier, job, start, stored[start:])
        finally:
            tier.let_go(reading)
            for key in wanted:
                if self._moving.get(key) is movement:
                    del self._moving[key]
            movement.ended.set()

    async def _read(
        self, tier: SsdTier, job: _Job, start: int, stored: Sequence[HeldBlock]
    ) -> None:
        """A few reads are always under way; what arrived in order is sealed at once."""
        blocks = self._pool.blocks
        wait_s = job.deadline_s - monotonic_s()
        given = await self._pool.line.take(job.owner, job.handle, len(stored), job.cap, wait_s)
        count = len(given)
        if not count:
            return
        self._pool.on_change()  # something may have been evicted
        pending: deque[tuple[int, asyncio.Future[int]]] = deque()
        following = 0
        try:
            while following < count or pending:
                is_late = monotonic_s() >= job.deadline_s
                while following < count and len(pending) < tier.depth and not is_late:
                    target = given[following].slot
                    pending.append((following, tier.read(stored[following], target)))
                    following += 1
                if not pending:
                    return
                at, reading = pending.popleft()
                if not await tier.finish(stored[at], reading):
                    return
                if not await self._seal(job, start + at, given[at], stored[at].checksum):
                    return
        finally:
            await settled([reading for _, reading in pending])
            # Sealed ones are no longer the handle's own, so this frees the rest only.
            blocks.free_own(job.owner, job.handle, given)

    async def _seal(self, job: _Job, index: int, given: HeldBlock, checksum: int) -> bool:
        item = SealItem(given.slot, given.generation, checksum, job.keys[index])
        try:
            (sealed,) = await self._pool.seal(job.owner, job.handle, index, job.keys, [item])
        except ServiceError as error:
            log.info("promotion for %s is cut short: %s", job.handle, error)
            return False
        job.num_brought += 1
        return sealed.is_readable
