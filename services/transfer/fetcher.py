"""Brings blocks of a chain from other nodes' pools into this one. Any failure shortens the run."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.transfer.flow import Flow, Urgency
from services.transfer.node_pool import NodePool
from services.transfer.peers import Peers
from services.transfer.stripes import Holder, Stripes, Target
from services.transfer.traffic import Traffic
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey
from shared.kv.pool_values import HeldBlock
from shared.messages.common import NodeRef, Replica
from shared.messages.pool import Blocks, FetchBlocks, FetchBlocksReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.transport.base import PeerLost
from shared.transport.router import Router

log = logging.getLogger("moonpool.transfer.fetch")
MIN_STRIPED_BYTES = 8 << 20
"""Less is not worth a message to each holder: the others are asked when the first fails."""
URGENCIES = {"request": Urgency.REQUEST, "background": Urgency.BACKGROUND}


@dataclass(slots=True)
class _Fetch:
    """One call on its way."""

    request_id: str
    owner: str
    handle: str
    cap: int
    keys: list[BlockKey]
    """As far as a source has them."""
    sources: list[Replica]
    urgency: Urgency
    deadline_s: float
    moved: Counter[str] = field(default_factory=Counter)
    """Bytes by transport."""

    @property
    def remaining_s(self) -> float:
        return self.deadline_s - monotonic_s()


@dataclass(slots=True)
class _Movement:
    """Keys on their way here; who wants one of them too waits for the end, unless that one has
    time and this one has not."""

    urgency: Urgency
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Fetcher:
    """Owns the movements that run, so that two requests never move one block twice at once."""

    def __init__(
        self,
        pool: NodePool,
        own: NodeRef,
        router: Router,
        peers: Peers,
        tasks: Tasks,
        flow: Flow,
    ) -> None:
        self._pool = pool
        self._own = own
        self._router = router
        self._peers = peers
        self._tasks = tasks
        self._flow = flow
        self._moving: dict[BlockKey, _Movement] = {}
        self.traffic = Traffic()

    @property
    def bytes_fetched_total(self) -> int:
        return self.traffic.num_bytes()

    async def fetch(self, owner: str, cap: int, request: FetchBlocks) -> FetchBlocksReply:
        started_s = monotonic_s()
        keys = split(request.keys)
        job = self._job(owner, cap, keys, request, started_s)
        held = await self._pool.lease_verified(owner, request.handle, keys, cap)
        num_local = len(held)
        if num_local < len(job.keys):
            try:
                await self._bring(job)
            except (ServiceError, PeerLost, TimeoutError) as error:
                self.traffic.failed(request.urgency, error)
                log.info(
                    "fetch for %s is cut short: %s",
                    job.request_id,
                    str(error) or type(error).__name__,
                )
            self.traffic.moved(request.urgency, job.moved, monotonic_s() - started_s)
            held = await self._pool.lease_verified(owner, request.handle, keys, cap)
        return FetchBlocksReply(
            blocks=blocks_of(held),
            num_local=min(num_local, len(held)),
            fetched_bytes=job.moved.total(),
            seconds=monotonic_s() - started_s,
            transport="+".join(sorted(job.moved)) or "none",
        )

    def _job(
        self, owner: str, cap: int, keys: list[BlockKey], request: FetchBlocks, now_s: float
    ) -> _Fetch:
        found = [request.source, *request.source.others]
        sources = {each.node: each for each in reversed(found) if each.node.id != self._own.id}
        longest = max((each.num_blocks for each in sources.values()), default=0)
        return _Fetch(
            request_id=request.ref.request_id,
            owner=owner,
            handle=request.handle,
            cap=cap,
            keys=keys[:longest],
            sources=list(reversed(sources.values())),
            urgency=URGENCIES[request.urgency],
            deadline_s=now_s + request.remaining_ms / 1000,
        )

    async def _bring(self, job: _Fetch) -> None:
        """Move what is missing, or wait for another request that moves it already."""
        while job.remaining_s > 0:
            start = self._pool.blocks.num_leading(job.keys)
            if start == len(job.keys):
                return
            other = self._moving.get(job.keys[start])
            if other is None or other.urgency > job.urgency:
                await self._move(job, start)
                return
            async with asyncio.timeout(job.remaining_s):
                await other.ended.wait()

    async def _move(self, job: _Fetch, start: int) -> None:
        movement = _Movement(job.urgency)
        wanted = job.keys[start:]
        for key in wanted:
            self._moving[key] = movement
        try:
            await self._from_any(job, start)
        finally:
            for key in wanted:
                if self._moving.get(key) is movement:
                    del self._moving[key]
            movement.ended.set()

    async def _from_any(self, job: _Fetch, start: int) -> None:
        """From all sources at once where it is worth it, else from one after the other."""
        num_bytes = (len(job.keys) - start) * self._pool.geometry.block_bytes
        is_striped = len(job.sources) > 1 and num_bytes >= MIN_STRIPED_BYTES
        failure: Exception | None = None
        for sources in [job.sources] if is_striped else [[each] for each in job.sources]:
            try:
                await self._from(job, start, sources)
            except (ServiceError, PeerLost) as error:
                failure = error
            start = self._pool.blocks.num_leading(job.keys)
            if start == len(job.keys):
                return
        if failure is not None:
            raise failure

    async def _from(self, job: _Fetch, start: int, replicas: Sequence[Replica]) -> None:
        """Hold the blocks wherever they are, read them, let go."""
        holders: list[Holder] = []
        failures: list[Exception] = []
        moved_before = job.moved.total()
        sources = [source for source in replicas if source.num_blocks > start]
        try:
            async with asyncio.TaskGroup() as group:
                for source in sources:
                    holding = self._hold(job, start, source, holders, failures)
                    group.create_task(holding, name=f"lease at {source.node.id}")
            if not holders and failures:
                raise failures[0]
            await self._move_blocks(job, start, holders)
            self._judge(holders, job.moved.total() - moved_before)
        finally:
            for holder in holders:
                if isinstance(holder.failure, PeerLost) and not holder.bad_keys:
                    self._peers.forget(holder.node)
                release = self._peers.release(
                    holder.node, holder.lease.lease_id, b"".join(holder.bad_keys)
                )
                self._tasks.start_contained(release, name="release at peer")

    def _judge(self, holders: Sequence[Holder], num_bytes: int) -> None:
        """What each holder did; with several of them nobody knows whose bytes took how long."""
        for holder in holders:
            if not holder.was_asked:
                continue  # it waited here: for slots, or for its turn
            if holder.failure is not None:
                self._peers.evidence.bad(holder.node, holder.failure, holder.read_s)
            elif num_bytes:
                alone = num_bytes if len(holders) == 1 else 0
                self._peers.evidence.good(holder.node, holder.read_s, alone)

    async def _hold(
        self,
        job: _Fetch,
        start: int,
        source: Replica,
        holders: list[Holder],
        failures: list[Exception],
    ) -> None:
        started_s = monotonic_s()
        try:
            peer = await self._peers.find(source.node, self._pool, job.remaining_s)
            chain = job.keys[: source.num_blocks]
            lease = await self._peers.lease(
                source.node, self._pool.root, chain, start, job.remaining_s
            )
        except (ServiceError, PeerLost, TimeoutError) as error:
            failures.append(error)
            self._peers.evidence.bad(source.node, error, monotonic_s() - started_s)
            return
        if lease.slots:
            holders.append(Holder(source.node, peer, lease))

    async def _move_blocks(self, job: _Fetch, start: int, holders: list[Holder]) -> None:
        """Into own slots; those that were not sealed are free again after it."""
        blocks = self._pool.blocks
        longest = max((holder.num_blocks for holder in holders), default=0)
        # Replication leaves the slots to those that wait for some.
        wait_s = 0.0 if job.urgency is Urgency.BACKGROUND else job.remaining_s
        given = await self._pool.line.take(job.owner, job.handle, longest, job.cap, wait_s)
        if not given:
            return
        self._pool.on_change()  # something may have been evicted
        target = Target(job.owner, job.handle, job.keys, start, given, job.deadline_s, job.urgency)
        stripes = Stripes(self._pool, self._router, self._flow, target, holders)
        try:
            await stripes.run()
        finally:
            job.moved += stripes.bytes_by_transport
            # Sealed ones are no longer the handle's own, so this frees the rest only.
            blocks.free_own(job.owner, job.handle, given)
        for holder in holders:
            if holder.failure is not None:
                log.info(
                    "%s: node %s was left: %s",
                    job.request_id,
                    holder.node.id,
                    str(holder.failure) or type(holder.failure).__name__,
                )


def blocks_of(held: Sequence[HeldBlock]) -> Blocks:
    return Blocks(
        slots=[block.slot for block in held],
        generations=[block.generation for block in held],
        checksums=[block.checksum for block in held],
    )
