"""Brings blocks of a chain from another node's pool into this one. Any failure shortens the run.

Blocks move in windows: what arrived and was verified is sealed before the next window moves, so a
lost peer or a deadline costs the rest only.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.transfer.node_pool import NodePool
from services.transfer.peers import PeerLease, Peers
from shared.kv.block_keys import split
from shared.kv.block_pool import HeldBlock, SealItem
from shared.kv.ids import BlockKey
from shared.messages.common import NodeRef
from shared.messages.pool import Blocks, FetchBlocks, FetchBlocksReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.transport.base import Peer, PeerLost, Slice, Transport

log = logging.getLogger("moonpool.transfer.fetch")
WINDOW_BYTES = 64 << 20


@dataclass(slots=True)
class _Fetch:
    """One call on its way."""

    owner: str
    handle: str
    cap: int
    keys: list[BlockKey]
    node: NodeRef
    deadline_s: float
    moved_bytes: int = 0

    @property
    def remaining_s(self) -> float:
        return self.deadline_s - monotonic_s()


@dataclass(slots=True)
class _Movement:
    """Keys on their way here; who wants one of them too waits for the end."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Fetcher:
    """Owns the movements that run, so that two requests never move one block twice at once."""

    def __init__(
        self, pool: NodePool, own: NodeRef, transport: Transport, peers: Peers, tasks: Tasks
    ) -> None:
        self._pool = pool
        self._own = own
        self._transport = transport
        self._peers = peers
        self._tasks = tasks
        self._moving: dict[BlockKey, _Movement] = {}
        self.bytes_in_flight = 0
        self.bytes_fetched_total = 0

    async def fetch(self, owner: str, cap: int, request: FetchBlocks) -> FetchBlocksReply:
        started_s = monotonic_s()
        keys = split(request.keys)
        job = _Fetch(
            owner=owner,
            handle=request.handle,
            cap=cap,
            keys=keys[: request.source.num_blocks],
            node=request.source.node,
            deadline_s=started_s + request.remaining_ms / 1000,
        )
        held = await self._pool.lease_verified(owner, request.handle, keys, cap)
        num_local = len(held)
        if num_local < len(job.keys) and job.node.id != self._own.id:
            try:
                await self._bring(job)
            except (ServiceError, PeerLost, TimeoutError) as error:
                log.info(
                    "fetch for %s from node %s is cut short: %s",
                    request.ref.request_id,
                    job.node.id,
                    error or type(error).__name__,
                )
            held = await self._pool.lease_verified(owner, request.handle, keys, cap)
        self.bytes_fetched_total += job.moved_bytes
        return FetchBlocksReply(
            blocks=blocks_of(held),
            num_local=min(num_local, len(held)),
            fetched_bytes=job.moved_bytes,
            seconds=monotonic_s() - started_s,
            transport=self._transport.name if job.moved_bytes else "none",
        )

    async def _bring(self, job: _Fetch) -> None:
        """Move what is missing, or wait for another request that moves it already."""
        while job.remaining_s > 0:
            start = self._pool.blocks.num_leading(job.keys)
            if start == len(job.keys):
                return
            other = self._moving.get(job.keys[start])
            if other is None:
                await self._move(job, start)
                return
            async with asyncio.timeout(job.remaining_s):
                await other.ended.wait()

    async def _move(self, job: _Fetch, start: int) -> None:
        movement = _Movement()
        wanted = job.keys[start:]
        for key in wanted:
            self._moving[key] = movement
        try:
            peer = await self._peers.find(job.node, self._pool, job.remaining_s)
            await self._move_leased(job, start, peer)
        except PeerLost:
            self._peers.forget(job.node)
            raise
        finally:
            for key in wanted:
                if self._moving.get(key) is movement:
                    del self._moving[key]
            movement.ended.set()

    async def _move_leased(self, job: _Fetch, start: int, peer: Peer) -> None:
        lease = await self._peers.lease(
            job.node, self._pool.root, job.keys[start:], job.remaining_s
        )
        bad_keys: list[BlockKey] = []
        try:
            await self._move_blocks(job, start, peer, lease, bad_keys)
        finally:
            if lease.slots:
                release = self._peers.release(job.node, lease.lease_id, b"".join(bad_keys))
                self._tasks.start_contained(release, name="release at peer")

    async def _move_blocks(
        self, job: _Fetch, start: int, peer: Peer, lease: PeerLease, bad_keys: list[BlockKey]
    ) -> None:
        """Window by window into own slots; those that were not sealed are free again after it."""
        blocks = self._pool.blocks
        count = min(len(lease.slots), blocks.num_available(job.owner, job.cap))
        if count == 0:
            return
        given = blocks.allocate(job.owner, job.handle, count, job.cap)
        assert isinstance(given, list), "as many as there are were asked for"
        self._pool.on_change()  # something may have been evicted
        window = max(1, WINDOW_BYTES // self._pool.geometry.block_bytes)
        job_bytes = count * self._pool.geometry.block_bytes
        self.bytes_in_flight += job_bytes
        try:
            for at in range(0, count, window):
                part = range(at, min(at + window, count))
                num_sealed = await self._move_window(job, start, peer, lease, given, part, bad_keys)
                if num_sealed < len(part):
                    return
        finally:
            self.bytes_in_flight -= job_bytes
            # Sealed ones are no longer the handle's own, so this frees the rest only.
            blocks.free_own(job.owner, job.handle, [block.slot for block in given])

    async def _move_window(
        self,
        job: _Fetch,
        start: int,
        peer: Peer,
        lease: PeerLease,
        given: Sequence[HeldBlock],
        part: range,
        bad_keys: list[BlockKey],
    ) -> int:
        """Read, verify, seal; returns how many leading blocks of the window are readable now."""
        block_bytes = self._pool.geometry.block_bytes
        slices = [
            Slice(lease.slots[i], lease.generations[i], given[i].slot, 0, block_bytes) for i in part
        ]
        timeout_s = min(job.deadline_s, lease.read_until_s) - monotonic_s()
        if timeout_s <= 0:
            raise TimeoutError("no time left to read")
        num_read = await self._transport.read(peer, slices, timeout_s=timeout_s)
        arrived = part[:num_read]
        full = self._pool.geometry.block_tokens
        found = await self._pool.checksums([(given[i].slot, full) for i in arrived])
        items: list[SealItem] = []
        for i, checksum in zip(arrived, found, strict=True):
            if checksum != lease.checksums[i]:
                bad_keys.append(job.keys[start + i])
                self._pool.checksum_failures_total += 1
                log.warning("block %s arrived damaged", job.keys[start + i].hex())
                break
            block = given[i]
            items.append(SealItem(block.slot, block.generation, checksum, job.keys[start + i]))
        first = start + part.start
        sealed = await self._pool.seal(job.owner, job.handle, first, job.keys, items)
        job.moved_bytes += len(items) * block_bytes
        return sum(item.is_readable for item in sealed)


def blocks_of(held: Sequence[HeldBlock]) -> Blocks:
    return Blocks(
        slots=[block.slot for block in held],
        generations=[block.generation for block in held],
        checksums=[block.checksum for block in held],
    )
