"""Peers on the same host: map the peer's segment read-only, copy in threads.

Chosen by whether the mapping works and holds the peer's nonce, never by address. Only the owner of
a pool writes in it, so a peer's slots are safe to look at; whether they still hold what was meant
is told by the generation, compared before and after the copy.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from shared.transport.base import Peer, PeerLost, Slice, WriteRefused
from shared.transport.node_files import NodeFiles, is_alive
from shared.transport.segment import Segment, SegmentError

PIECE_BYTES = 4 << 20
"""Between two pieces a copy looks whether it shall stop."""
MAX_MAPPED_PEERS = 64


@dataclass(slots=True)
class _Mapped:
    segment: Segment
    stops: set[threading.Event] = field(default_factory=set)
    """One of each read that runs."""
    is_aborted: bool = False


class LocalTransport:
    """Reads from segments of the same host into the own one."""

    name = "local"

    def __init__(self, own: Segment, *, num_threads: int = 2) -> None:
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._own = own
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="local-copy")
        self._peers: OrderedDict[tuple[str, str], _Mapped] = OrderedDict()

    async def connect(self, peer: Peer) -> None:
        key = (peer.node, peer.incarnation)
        if key in self._peers:
            if not _is_alive(peer):
                self.abort(peer)
                raise PeerLost(f"node {peer.node}: its process is gone")
            self._peers.move_to_end(key)
            return
        segment = await asyncio.get_running_loop().run_in_executor(
            self._threads, _map, peer, self._own.info.block_bytes
        )
        if key in self._peers:
            segment.close()  # two connected at once
            return
        self._peers[key] = _Mapped(segment)
        self._close_idle()

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        await self.connect(peer)
        mapped = self._peers.get((peer.node, peer.incarnation))
        if mapped is None:
            raise PeerLost(f"node {peer.node}: given up while it was being mapped")
        stop = threading.Event()
        mapped.stops.add(stop)
        loop = asyncio.get_running_loop()
        copy = loop.run_in_executor(self._threads, _copy, mapped.segment, self._own, slices, stop)
        try:
            async with asyncio.timeout(timeout_s):
                done = await asyncio.shield(copy)
        finally:
            # Stopped, late or cancelled: the thread must have left the own slots before we do.
            stop.set()
            await _settled(copy)
            mapped.stops.discard(stop)
            if mapped.is_aborted and not mapped.stops:
                mapped.segment.close()
        if mapped.is_aborted and done < len(slices):
            raise PeerLost(f"node {peer.node}: reading was aborted")
        return done

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        raise WriteRefused(f"node {peer.node}: a pool on this host is written by its owner alone")

    def abort(self, peer: Peer) -> None:
        mapped = self._peers.pop((peer.node, peer.incarnation), None)
        if mapped is None:
            return
        mapped.is_aborted = True
        for stop in mapped.stops:
            stop.set()
        if not mapped.stops:
            mapped.segment.close()

    async def close(self) -> None:
        for node, incarnation in list(self._peers):
            self.abort(Peer(node, incarnation))
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _close_idle(self) -> None:
        for key in list(self._peers):
            if len(self._peers) <= MAX_MAPPED_PEERS:
                return
            if not self._peers[key].stops:
                self._peers.pop(key).segment.close()


async def _settled(copy: asyncio.Future[int]) -> None:
    """Wait for the thread, whatever happens to this task meanwhile."""
    is_cancelled = False
    while not copy.done():
        try:
            await asyncio.wait([copy])
        except asyncio.CancelledError:
            is_cancelled = True
    if not copy.cancelled():
        copy.exception()  # seen: the caller has an error of its own or gets this one
    if is_cancelled:
        raise asyncio.CancelledError


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


def _copy(source: Segment, own: Segment, slices: Sequence[Slice], stop: threading.Event) -> int:
    """Leading slices that were copied while their slot stayed in its use."""
    for done, part in enumerate(slices):
        if not 0 <= part.peer_slot < source.info.num_slots:
            return done
        if int(source.generations[part.peer_slot]) != part.peer_generation:
            return done
        from_block = source.block(part.peer_slot)[part.offset : part.offset + part.num_bytes]
        to_block = own.block(part.slot)[part.offset : part.offset + part.num_bytes]
        for at in range(0, part.num_bytes, PIECE_BYTES):
            if stop.is_set():
                return done
            # numpy gives up the GIL for this copy; a memoryview's slice assignment would not.
            np.copyto(to_block[at : at + PIECE_BYTES], from_block[at : at + PIECE_BYTES])
        if int(source.generations[part.peer_slot]) != part.peer_generation:
            return done
    return len(slices)
