"""One-sided reads and writes over UCX: RDMA where there is a NIC, else what UCX has.

The pool's memory is registered once. A call returns only when none of its requests can touch memory
any more; where a peer does not let them settle, its endpoint is torn down.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from shared.transport.base import Peer, PeerLost, RdmaAddress, Slice, WriteRefused, check_slices
from shared.transport.node_files import NodeFiles, is_alive
from shared.transport.rdma_memory import ScratchMemory, address_of
from shared.transport.rdma_options import RdmaOptions
from shared.transport.rdma_plan import Scratch, batches, move, probe
from shared.transport.segment import Segment
from shared.transport.sieve import Sieve
from shared.transport.ucx_context import Region, UcxResource
from shared.transport.ucx_endpoint import Job, Step, UcxEndpoint
from shared.transport.ucx_library import load_ucx
from shared.transport.ucx_thread import UcxThread

log = logging.getLogger("moonpool.transport.rdma")
CONNECT_TIMEOUT_S = 3.0
LIFE_CHECK_S = 0.25
"""How often a peer on this host is looked after while something moves."""
STALL_S = 1.0
"""A stopped call waits for its requests as long as something goes on this often."""
SETTLE_S = 3.0
STUCK_S = 10.0
JOBS_PER_PEER = 4


@dataclass(slots=True, eq=False)
class _Link:
    """A peer that is connected or about to be."""

    peer: Peer
    address: RdmaAddress
    files: NodeFiles | None
    """Of a peer on this host: whether its process lives."""
    endpoint: UcxEndpoint
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(JOBS_PER_PEER))
    num_calls: int = 0
    is_connected: bool = False
    problem: str = ""


@dataclass(slots=True, eq=False)
class _Running:
    """A job as the loop sees it."""

    job: Job
    ended: asyncio.Future[tuple[int, str]]


class RdmaTransport:
    """Moves slices between the own segment and those of peers that offer an RdmaAddress."""

    name = "rdma"

    def __init__(self, own: Segment, options: RdmaOptions, thread: UcxThread) -> None:
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._own = own
        self._options = options
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._scratch = ScratchMemory(thread)
        self._links: Sieve[tuple[str, str], _Link] = Sieve(options.max_endpoints)
        self._is_closed = False
        self._data: Region
        self._table: Region

    @classmethod
    async def open(cls, own: Segment, options: RdmaOptions) -> Self:
        """UcxUnavailable without a library; UcxError when it cannot be used as asked."""
        library = await asyncio.to_thread(load_ucx, options.library)
        thread = UcxThread(library, options.ucx_options, asyncio.get_running_loop().time)
        await asyncio.to_thread(thread.open)
        transport = cls(own, options, thread)
        try:
            await transport._register()
        except BaseException:
            await transport.close()
            raise
        return transport

    def describe(self) -> RdmaAddress:
        """What peers need; changes when `fence` was called."""
        return RdmaAddress(
            worker_address=self._thread.address,
            table_address=self._table.address,
            table_rkey=self._table.rkey,
            data_address=self._data.address,
            data_rkey=self._data.rkey,
            num_slots=self._own.info.num_slots,
            block_bytes=self._own.info.block_bytes,
        )

    async def connect(self, peer: Peer) -> None:
        await self._connected(peer)

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        self._check(slices)
        async with asyncio.timeout(timeout_s):
            link = await self._connected(peer)
            return await self._move(link, slices, is_write=False)

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        self._check(slices)
        if self._options.writes == "never":
            raise WriteRefused(f"node {peer.node}: a pool is written by its owner alone")
        async with asyncio.timeout(timeout_s):
            link = await self._connected(peer)
            is_cma = any(lane.transport == "cma" for lane in link.endpoint.lanes)
            if is_cma and self._options.writes != "always":
                # Not even the end of the connection keeps a stopped process from going on with it.
                raise WriteRefused(
                    f"node {peer.node}: a pool on this host is written by its owner alone"
                )
            return await self._move(link, slices, is_write=True)

    def _check(self, slices: Sequence[Slice]) -> None:
        info = self._own.info
        check_slices(slices, num_slots=info.num_slots, block_bytes=info.block_bytes)

    def lanes(self, peer: Peer) -> list[UcxResource]:
        """What UCX uses to reach a connected peer."""
        link = self._links.peek((peer.node, peer.incarnation))
        return [] if link is None else link.endpoint.lanes

    def abort(self, peer: Peer) -> None:
        link = self._links.pop((peer.node, peer.incarnation))
        if link is not None:
            self._give_up(link, "reading was aborted")

    async def fence(self) -> None:
        """Returned: whatever peers were writing here, nothing of it lands any more.

        All peers lose their connection to this node and must ask for its new address.
        """
        await asyncio.wrap_future(self._thread.run(self._thread.replace_target))

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.clear():
            self._give_up(link, "this node ends")
        await asyncio.to_thread(self._thread.close)
        self._scratch.close()

    @property
    def num_wakeups(self) -> int:
        """Of the UCX thread, since the start."""
        return self._thread.num_wakeups

    async def _register(self) -> None:
        info, thread = self._own.info, self._thread
        table, data = address_of(self._own.generations), address_of(self._own.bytes)
        self._table = await asyncio.wrap_future(
            thread.run(lambda: thread.register(table, self._own.generations.nbytes))
        )
        self._data = await asyncio.wrap_future(
            thread.run(lambda: thread.register(data, info.data_bytes))
        )

    async def _connected(self, peer: Peer) -> _Link:
        link = self._links.get((peer.node, peer.incarnation))
        if link is None or link.problem:
            link = self._make_link(peer)
        if link.files is not None and not is_alive(link.files):
            self._lose(link, "its process is gone")
            raise PeerLost(f"node {peer.node}: its process is gone")
        if not link.is_connected:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._run(link, lambda scratch: probe(link.address, scratch))
            except TimeoutError:
                raise PeerLost(f"node {peer.node} does not answer over rdma") from None
            link.is_connected = True
        return link

    def _make_link(self, peer: Peer) -> _Link:
        if self._is_closed:
            raise PeerLost(f"node {peer.node}: this node ends")

        def on_lost(reason: str) -> None:
            self._on_loop(lambda: self._lose(link, reason))

        address = _address_of(peer, self._own)
        endpoint = self._thread.endpoint(address, on_lost)
        link = _Link(peer, address, _files_of(peer), endpoint)
        self._links.put((peer.node, peer.incarnation), link)
        for idle in self._links.evict(lambda each: each.num_calls > 0):
            self._give_up(idle, "another peer needed the place")
        return link

    async def _move(self, link: _Link, slices: Sequence[Slice], *, is_write: bool) -> int:
        total = 0
        for batch in batches(slices):
            steps = partial(self._steps, link, batch, is_write)
            count = await self._run(link, steps)
            total += count
            if count < len(batch):
                break
        return total

    def _steps(
        self, link: _Link, batch: Sequence[Slice], is_write: bool, scratch: Scratch
    ) -> Generator[Step, None, int]:
        return move(batch, link.address, self._data, scratch, is_write=is_write)

    async def _run(
        self, link: _Link, steps: Callable[[Scratch], Generator[Step, None, int]]
    ) -> int:
        """One job to its end; PeerLost. Stopped when the caller is, and then waited for."""
        link.num_calls += 1
        try:
            async with link.turns:
                if link.problem:
                    raise PeerLost(f"node {link.peer.node}: {link.problem}")
                async with self._scratch.taken() as scratch:
                    return await self._run_job(link, steps(scratch))
        finally:
            link.num_calls -= 1

    async def _run_job(self, link: _Link, steps: Generator[Step, None, int]) -> int:
        running = self._start(link, steps)
        try:
            while not running.ended.done():
                await asyncio.wait([running.ended], timeout=LIFE_CHECK_S)
                if link.files is not None and not is_alive(link.files):
                    self._lose(link, "its process is gone")
        finally:
            await self._settle(link, running)
        result, problem = running.ended.result()
        if problem:
            raise PeerLost(f"node {link.peer.node}: {link.problem or problem}")
        return result

    def _start(self, link: _Link, steps: Generator[Step, None, int]) -> _Running:
        ended: asyncio.Future[tuple[int, str]] = self._loop.create_future()

        def on_end(result: int, problem: str) -> None:
            self._on_loop(lambda: ended.set_result((result, problem)))

        job = Job(steps, on_end)
        self._thread.post(lambda: link.endpoint.start(job))
        return _Running(job, ended)

    async def _settle(self, link: _Link, running: _Running) -> None:
        """Wait until nothing of the job moves; a peer that does not let it is torn off."""
        if running.ended.done():
            return
        self._thread.post(lambda: link.endpoint.stop(running.job))
        started_s = self._loop.time()
        is_cancelled = False
        while not running.ended.done():
            try:
                await asyncio.wait([running.ended], timeout=LIFE_CHECK_S)
            except asyncio.CancelledError:
                is_cancelled = True
            waited_s = self._loop.time() - started_s
            stalled_s = min(waited_s, self._loop.time() - link.endpoint.settled_s)
            if running.ended.done():
                break
            if stalled_s > STALL_S or waited_s > SETTLE_S:
                self._lose(link, "it does not answer")
            if waited_s > STUCK_S:
                # Memory that may still be written is never given back.
                log.critical("node %s: UCX does not end a transfer", link.peer.node)
                started_s = self._loop.time()
        if is_cancelled:
            raise asyncio.CancelledError

    def _lose(self, link: _Link, reason: str) -> None:
        """Found dead: by UCX, by its lock, or because nothing comes back."""
        if link.problem:
            return
        self._give_up(link, reason)
        key = (link.peer.node, link.peer.incarnation)
        if self._links.peek(key) is link:
            self._links.pop(key)
        if self.on_peer_lost is not None:
            self.on_peer_lost(link.peer, reason)

    def _give_up(self, link: _Link, reason: str) -> None:
        if not link.problem:
            link.problem = reason
            self._thread.post(lambda: link.endpoint.close(reason))

    def _on_loop(self, call: Callable[[], None]) -> None:
        """From the UCX thread; a loop that is gone needs to know nothing."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return


def _address_of(peer: Peer, own: Segment) -> RdmaAddress:
    if peer.rdma is None:
        raise PeerLost(f"node {peer.node} offers no rdma")
    if peer.rdma.block_bytes != own.info.block_bytes:
        raise PeerLost(
            f"node {peer.node}: block_bytes {peer.rdma.block_bytes}, here {own.info.block_bytes}"
        )
    return peer.rdma


def _files_of(peer: Peer) -> NodeFiles | None:
    """Of a peer on this host; None where it cannot be told, then UCX alone sees its death.

    Its lock is dropped by the kernel with its process, so a pid that is given to another process
    is never taken for it.
    """
    files = None if peer.local is None else NodeFiles.of(peer.local.path)
    return files if files is not None and files.lock.exists() else None
