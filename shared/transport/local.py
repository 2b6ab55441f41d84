"""Peers on the same host: map the peer's segment read-only, copy in threads.

Chosen by whether the mapping works and holds the peer's nonce, never by address. Only the owner of
a pool writes in it, so a peer's slots are safe to look at; whether they still hold what was meant
is told by the generation, compared before and after the copy.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

import numpy as np

from shared.transport.base import Peer, PeerLost, Slice, WriteRefused, check_slices
from shared.transport.copying import RUN, Copier, PlainCopier, Runs, Stop
from shared.transport.node_files import NodeFiles, is_alive
from shared.transport.segment import Segment, SegmentError
from shared.transport.settling import settled
from shared.transport.sieve import Sieve

MAX_MAPPED_PEERS = 64
LOOK_S = 2.0
"""So often it is looked whether peers still run: what is mapped of a dead one stays in memory."""
MIN_SHARE_BYTES = 1 << 20
"""Less is not worth waking another thread."""


@dataclass(slots=True)
class _Mapped:
    peer: Peer
    segment: Segment
    stops: set[Stop] = field(default_factory=set)
    """One of each read that runs."""
    is_aborted: bool = False

    def end(self) -> None:
        """The last read that runs unmaps it."""
        self.is_aborted = True
        for stop in self.stops:
            stop.set()
        if not self.stops:
            self.segment.close()


class LocalTransport:
    """Reads from segments of the same host into the own one."""

    name = "local"

    def __init__(self, own: Segment, *, num_threads: int = 2, copier: Copier | None = None) -> None:
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._own = own
        self._copier = copier or PlainCopier()
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="local-copy")
        self._peers: Sieve[tuple[str, str], _Mapped] = Sieve(MAX_MAPPED_PEERS)
        self._look: asyncio.TimerHandle | None = None

    async def connect(self, peer: Peer) -> None:
        key = (peer.node, peer.incarnation)
        if self._peers.get(key) is not None:
            if not _is_alive(peer):
                self.abort(peer)
                raise PeerLost(f"node {peer.node}: its process is gone")
            return
        segment = await asyncio.get_running_loop().run_in_executor(
            self._threads, _map, peer, self._own.info.block_bytes
        )
        if self._peers.peek(key) is not None:
            segment.close()  # two connected at once
            return
        self._peers.put(key, _Mapped(peer, segment))
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._end_dead)
        for idle in self._peers.evict(lambda each: bool(each.stops)):
            idle.segment.close()

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return len(await self._read(peer, slices, timeout_s, with_digests=False))

    async def read_digests(
        self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float
    ) -> list[int]:
        digests = await self._read(peer, slices, timeout_s, with_digests=True)
        return [digest or 1 for digest in digests]

    async def _read(
        self, peer: Peer, slices: Sequence[Slice], timeout_s: float, *, with_digests: bool
    ) -> list[int]:
        info = self._own.info
        check_slices(slices, num_slots=info.num_slots, block_bytes=info.block_bytes)
        await self.connect(peer)
        mapped = self._peers.peek((peer.node, peer.incarnation))
        if mapped is None:
            raise PeerLost(f"node {peer.node}: given up while it was being mapped")
        runs = _runs(mapped.segment, self._own, slices)
        stop = Stop()
        mapped.stops.add(stop)
        loop = asyncio.get_running_loop()
        parts = _shares(runs, self._num_threads)
        copies = [
            loop.run_in_executor(
                self._threads, partial(self._copier.copy, part, stop, with_digests=with_digests)
            )
            for part in parts
        ]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait(copies)
        finally:
            # Stopped, late or cancelled: the threads must have left the own slots before we do.
            stop.set()
            await settled(copies)
            mapped.stops.discard(stop)
            if mapped.is_aborted and not mapped.stops:
                mapped.segment.close()
        done = _num_leading(parts, [copy.result() for copy in copies])
        if mapped.is_aborted and done < len(slices):
            raise PeerLost(f"node {peer.node}: reading was aborted")
        return [int(digest) for digest in runs["digest"][:done]]

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        raise WriteRefused(f"node {peer.node}: a pool on this host is written by its owner alone")

    def abort(self, peer: Peer) -> None:
        mapped = self._peers.pop((peer.node, peer.incarnation))
        if mapped is not None:
            mapped.end()

    def _end_dead(self) -> None:
        """Unmap peers whose process is gone; looks again while any is mapped."""
        for mapped in self._peers.values():
            if not _is_alive(mapped.peer):
                self.abort(mapped.peer)
        has_some = len(self._peers) > 0
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(LOOK_S, self._end_dead) if has_some else None

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        for mapped in self._peers.clear():
            mapped.end()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)


def _map(peer: Peer, block_bytes: int) -> Segment:
    if peer.local is None:
        raise PeerLost(f"node {peer.node} offers no segment on a host")
    if not _is_alive(peer):
        raise PeerLost(f"node {peer.node}: its process is gone, or it runs on another host")
    if peer.local.block_bytes != block_bytes:
        raise PeerLost(
            f"node {peer.node}: block_bytes {peer.local.block_bytes}, here {block_bytes}"
        )
    try:
        return Segment.open(peer.local, is_writable=False)
    except SegmentError as error:
        raise PeerLost(f"node {peer.node}: {error}") from None


def _is_alive(peer: Peer) -> bool:
    files = None if peer.local is None else NodeFiles.of(peer.local.path)
    return files is not None and is_alive(files)


def _runs(source: Segment, own: Segment, slices: Sequence[Slice]) -> Runs:
    """Addresses of all slices up to the first that names no slot of the peer."""
    num_slots, block_bytes = source.info.num_slots, source.info.block_bytes
    valid = list(takewhile(lambda part: 0 <= part.peer_slot < num_slots, slices))
    runs = np.zeros(len(valid), dtype=RUN)
    if valid:
        offsets = np.array([part.offset for part in valid], dtype=np.uint64)
        slots = np.array([(part.peer_slot, part.slot) for part in valid], dtype=np.uint64)
        size = np.uint64(block_bytes)
        runs["from"] = np.uint64(source.bytes.ctypes.data) + slots[:, 0] * size + offsets
        runs["to"] = np.uint64(own.bytes.ctypes.data) + slots[:, 1] * size + offsets
        runs["bytes"] = [part.num_bytes for part in valid]
        runs["generation"] = [part.peer_generation for part in valid]
        table = np.uint64(source.generations.ctypes.data)
        runs["generation_at"] = table + slots[:, 0] * np.uint64(8)
    return runs


def _shares(runs: Runs, num_threads: int) -> list[Runs]:
    """About equal parts in order, for as many threads as the bytes are worth."""
    if not len(runs):
        return [runs]
    ends = np.cumsum(runs["bytes"].astype(np.int64))
    count = max(1, min(num_threads, len(runs), int(ends[-1]) // MIN_SHARE_BYTES))
    goals = ends[-1] * np.arange(1, count) // count
    return np.split(runs, np.unique(np.searchsorted(ends, goals, side="left") + 1))


def _num_leading(parts: Sequence[Runs], done: Sequence[int]) -> int:
    total = 0
    for part, count in zip(parts, done, strict=True):
        total += count
        if count < len(part):
            break
    return total
