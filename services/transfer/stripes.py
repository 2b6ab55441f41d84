"""Moves a run of blocks from all nodes that hold it at once, window by window.

Each holder takes the next window when it is done with its last, so the faster one brings more. What
one cannot give goes to another. What arrived in order is sealed at once: a lost holder or a
deadline costs the rest only.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.transfer.flow import Flow, Urgency
from services.transfer.node_pool import NodePool
from services.transfer.peers import PeerLease
from shared.kv.ids import BlockKey
from shared.kv.pool_values import HeldBlock, SealItem
from shared.messages.common import NodeRef
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.transport.base import Peer, PeerLost, Slice
from shared.transport.router import Router

log = logging.getLogger("moonpool.transfer.fetch")
WINDOW_BYTES = 64 << 20
WINDOWS_PER_HOLDER = 4
"""Of several holders: so many windows at least, that the last one is not waited for long."""


@dataclass(slots=True, eq=False)
class Holder:
    """One node that holds the run's leading blocks for us."""

    node: NodeRef
    peer: Peer
    lease: PeerLease
    bad_keys: list[BlockKey] = field(default_factory=list)
    """What arrived damaged from there."""
    failure: Exception | None = None
    """Why nothing more is read from there."""
    read_s: float = 0.0
    """Spent on reading from there, without the waiting for a turn."""
    was_asked: bool = False

    @property
    def num_blocks(self) -> int:
        return len(self.lease.slots)


@dataclass(frozen=True, slots=True)
class Target:
    """Own WRITING slots for a run, and where it is in its chain."""

    owner: str
    handle: str
    keys: Sequence[BlockKey]
    """The chain from its root on."""
    start: int
    """Index of the first block of the run."""
    slots: Sequence[HeldBlock]
    deadline_s: float
    urgency: Urgency = Urgency.REQUEST


class Stripes:
    """One run on its way. `run` returns when no byte of it moves any more."""

    def __init__(
        self, pool: NodePool, router: Router, flow: Flow, target: Target, holders: Sequence[Holder]
    ) -> None:
        self._pool = pool
        self._router = router
        self._flow = flow
        self._target = target
        self._holders = holders
        self._waiting = deque(self._windows())
        self._arrived: dict[int, int] = {}
        """Checksum by place in the run, of blocks that are not sealed yet."""
        self._sealing = asyncio.Lock()
        self._num_sealed = 0
        self._is_over = False
        self.bytes_by_transport: Counter[str] = Counter()

    async def run(self) -> None:
        """Failures are in the holders; what is not sealed stays the owner's WRITING slots."""
        while self._waiting and not self._is_over:
            able = [holder for holder in self._holders if self._has_work(holder)]
            if not able:
                return
            async with asyncio.TaskGroup() as group:
                for holder in able:
                    group.create_task(self._drain(holder), name=f"read from {holder.node.id}")

    def _windows(self) -> list[range]:
        count, block_bytes = len(self._target.slots), self._pool.geometry.block_bytes
        size = max(1, WINDOW_BYTES // block_bytes)
        if len(self._holders) > 1:
            size = max(1, min(size, count // (WINDOWS_PER_HOLDER * len(self._holders))))
        return [range(at, min(at + size, count)) for at in range(0, count, size)]

    def _has_work(self, holder: Holder) -> bool:
        return holder.failure is None and any(
            window.start < holder.num_blocks for window in self._waiting
        )

    def _next(self, holder: Holder) -> range | None:
        """The first window that this holder has a part of; it takes that part."""
        for window in self._waiting:
            if window.start < holder.num_blocks:
                self._waiting.remove(window)
                end = min(window.stop, holder.num_blocks)
                self._put_back(range(end, window.stop))
                return range(window.start, end)
        return None

    def _put_back(self, window: range) -> None:
        if window:
            self._waiting.append(window)
            self._waiting = deque(sorted(self._waiting, key=lambda each: each.start))

    async def _drain(self, holder: Holder) -> None:
        while not self._is_over and (window := self._next(holder)) is not None:
            try:
                num_good = await self._read(holder, window)
            except (PeerLost, TimeoutError) as error:
                holder.failure = error
                self._put_back(window)
                return
            if num_good < len(window):
                holder.failure = holder.failure or PeerLost("a slot is in another use by now")
                self._put_back(window[num_good:])
            try:
                self._is_over = not await self._seal_leading() or self._is_over
            except ServiceError as error:
                log.warning("blocks that arrived could not be sealed: %s", error)
                self._is_over = True
            if holder.failure is not None:
                return

    async def _read(self, holder: Holder, window: range) -> int:
        """Blocks of the window that are here and right, from its first on."""
        lease, target = holder.lease, self._target
        block_bytes = self._pool.geometry.block_bytes
        slices = [
            Slice(lease.slots[i], lease.generations[i], target.slots[i].slot, 0, block_bytes)
            for i in window
        ]
        num_bytes = len(slices) * block_bytes
        until_s = min(target.deadline_s, lease.read_until_s)
        left_s = until_s - monotonic_s()
        async with self._flow.turn_within(left_s, holder.node.id, num_bytes, target.urgency):
            asked_s, holder.was_asked = monotonic_s(), True
            try:
                moved = await self._router.fetch(
                    holder.peer, slices, timeout_s=until_s - asked_s, with_digests=True
                )
            finally:
                holder.read_s += monotonic_s() - asked_s
        digests = moved.digests
        if not digests:
            full = self._pool.geometry.block_tokens
            arrived = window[: moved.num_slices]
            digests = tuple(
                await self._pool.checksums([(target.slots[i].slot, full) for i in arrived])
            )
        num_good = 0
        for i, digest in zip(window, digests, strict=False):
            if digest != lease.checksums[i]:
                self._note_damage(holder, i)
                break
            self._arrived[i] = digest
            num_good += 1
        self.bytes_by_transport[moved.transport] += num_good * block_bytes
        return num_good

    def _note_damage(self, holder: Holder, index: int) -> None:
        key = self._target.keys[self._target.start + index]
        holder.bad_keys.append(key)
        holder.failure = PeerLost("a block arrived damaged")
        self._pool.checksum_failures_total += 1
        log.warning("block %s arrived damaged from node %s", key.hex(), holder.node.id)

    async def _seal_leading(self) -> bool:
        """Seal what has arrived in order; False when it did not become readable."""
        async with self._sealing:
            first = self._num_sealed
            items: list[SealItem] = []
            while (checksum := self._arrived.pop(self._num_sealed, None)) is not None:
                block = self._target.slots[self._num_sealed]
                key = self._target.keys[self._target.start + self._num_sealed]
                items.append(SealItem(block.slot, block.generation, checksum, key))
                self._num_sealed += 1
            if not items:
                return True
            sealed = await self._pool.seal(
                self._target.owner,
                self._target.handle,
                self._target.start + first,
                self._target.keys,
                items,
            )
            return all(item.is_readable for item in sealed)
