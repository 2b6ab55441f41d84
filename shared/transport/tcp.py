"""Peers on other hosts without RDMA: one to four streams each, received straight into the blocks.

Not encrypted: the network between nodes is private, and a capability that went over the control
plane says who may be there. Which slots may be read or written is told by their generation and, for
writes, by the peer's pool.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence

from shared.transport.base import Peer, PeerLost, Slice, TcpAddress, WriteRefused, check_slices
from shared.transport.listening import bind_listener
from shared.transport.segment import Segment
from shared.transport.sieve import Sieve
from shared.transport.tcp_link import PeerLink
from shared.transport.tcp_server import MayWrite, TcpServer, refuse_writes
from shared.transport.tcp_stream import Stream, Work
from shared.transport.tcp_wire import CAPABILITY_BYTES, MAX_SLICES, Names, Operation

log = logging.getLogger("moonpool.transport.tcp")
MIN_REQUEST_BYTES, MAX_REQUEST_BYTES = 4 << 20, 16 << 20
"""What one stream is asked for at once: few round trips, and calls share the streams in turn."""
REQUESTS_PER_STREAM = 4
"""Of a large call, so that no stream ends long before the others."""
IN_PLACE_BYTES = 256 << 10
"""Slices from here on are sent without a copy."""
MAX_PEERS = 64
STALL_S = 0.8


def default_streams() -> int:
    """A stream keeps about one core busy on each side: more only take time from one another."""
    return max(1, min(4, (os.cpu_count() or 1) // 2))


class TcpTransport:
    """Reads from peers' slots and lets peers read own ones."""

    name = "tcp"

    def __init__(
        self,
        own: Segment,
        node: str,
        incarnation: str,
        *,
        num_streams: int | None = None,
        may_write: MayWrite = refuse_writes,
        stall_s: float = STALL_S,
        max_peers: int = MAX_PEERS,
    ) -> None:
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._own = own
        self._names = (node, incarnation)
        self._streams_per_peer = num_streams or default_streams()
        self._stall_s = stall_s
        self._capability = secrets.token_bytes(CAPABILITY_BYTES)
        self._links: Sieve[tuple[str, str], PeerLink] = Sieve(max_peers)
        self._streams: set[Stream] = set()
        self.server = TcpServer(own, node, incarnation, self._capability, may_write=may_write)

    async def listen(self, host: str, ports: range) -> TcpAddress:
        """Let peers in at `host`, a name or address that leads to this machine."""
        listener = await bind_listener(host, ports)
        port = int(listener.getsockname()[1])
        self.server.start(listener)
        return TcpAddress(host, port, self._capability)

    @property
    def num_streams(self) -> int:
        """Open now, to all peers."""
        return len(self._streams)

    async def connect(self, peer: Peer) -> None:
        await self._link(peer).opened()

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return sum(work.done for work in await self._move(peer, slices, timeout_s, Operation.READ))

    async def read_digests(
        self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float
    ) -> list[int]:
        works = await self._move(peer, slices, timeout_s, Operation.READ, with_digests=True)
        return [digest for work in works for digest in work.digests]

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        works = await self._move(peer, slices, timeout_s, Operation.WRITE)
        done = sum(work.done for work in works)
        if slices and done == 0:
            raise WriteRefused(f"node {peer.node} has not given these slots to this node")
        return done

    def abort(self, peer: Peer) -> None:
        link = self._links.pop((peer.node, peer.incarnation))
        if link is not None:
            link.end("given up")

    async def close(self) -> None:
        for link in self._links.clear():
            link.end("this node shuts down")
        while self._streams:
            await asyncio.wait([stream.ended for stream in self._streams])
        await self.server.close()

    async def _move(
        self,
        peer: Peer,
        slices: Sequence[Slice],
        timeout_s: float,
        operation: Operation,
        *,
        with_digests: bool = False,
    ) -> list[Work]:
        """What was moved, up to the first piece that is not whole."""
        info = self._own.info
        check_slices(slices, num_slots=info.num_slots, block_bytes=info.block_bytes)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        async with asyncio.timeout_at(deadline_s):
            link = self._link(peer)
            await link.opened()
        if not slices:
            return []
        parts = _parts(slices, self._streams_per_peer)
        works = [
            Work(_fit(operation, part), part, with_digests, loop.create_future()) for part in parts
        ]
        try:
            await link.run(works, deadline_s - loop.time())
        finally:
            self._give_up_idle()  # there may be more than allowed while all are busy
        for number, work in enumerate(works):
            if work.done < len(work.slices):
                return works[: number + 1]
        return works

    def _link(self, peer: Peer) -> PeerLink:
        key = (peer.node, peer.incarnation)
        link = self._links.get(key)
        if link is None:
            if peer.tcp is None:
                raise PeerLost(f"node {peer.node} offers no streams")
            link = PeerLink(peer, self._streams_per_peer, self._open_stream, self._on_lost)
            self._links.put(key, link)
            self._give_up_idle()
        return link

    def _give_up_idle(self) -> None:
        for idle in self._links.evict(lambda each: each.is_busy):
            idle.end("idle")

    def _drop(self, link: PeerLink, reason: str) -> None:
        key = (link.peer.node, link.peer.incarnation)
        if self._links.peek(key) is link:
            self._links.pop(key)
        link.end(reason)

    def _open_stream(self, link: PeerLink) -> Stream:
        peer = link.peer
        assert peer.tcp is not None, "a link is made for an address"

        def on_ended(stream: Stream, reason: str) -> None:
            self._streams.discard(stream)
            link.on_stream_ended(stream, reason)

        names = Names(*self._names, peer.node, peer.incarnation)
        stream = Stream(
            self._own, names, peer.tcp, link.progress, self._stall_s, link.on_free, on_ended
        )
        self._streams.add(stream)
        return stream

    def _on_lost(self, link: PeerLink, reason: str) -> None:
        self._drop(link, reason)
        log.info("node %s is lost: %s", link.peer.node, reason)
        if self.on_peer_lost is not None and link.was_connected:
            self.on_peer_lost(link.peer, reason)


def _fit(operation: Operation, slices: Sequence[Slice]) -> Operation:
    """A copy costs more than another round trip and a call for each slice that is not small."""
    mean_bytes = sum(part.num_bytes for part in slices) // len(slices)
    if operation is Operation.READ and mean_bytes >= IN_PLACE_BYTES:
        return Operation.READ_IN_PLACE
    return operation


def _parts(slices: Sequence[Slice], num_streams: int) -> list[Sequence[Slice]]:
    """Cut into requests: a whole number of slices each."""
    total = sum(part.num_bytes for part in slices)
    wanted = total // (num_streams * REQUESTS_PER_STREAM)
    request_bytes = min(max(wanted, MIN_REQUEST_BYTES), MAX_REQUEST_BYTES)
    parts: list[Sequence[Slice]] = []
    start = num_bytes = 0
    for number, part in enumerate(slices):
        is_full = num_bytes + part.num_bytes > request_bytes or number - start == MAX_SLICES
        if number > start and is_full:
            parts.append(slices[start:number])
            start, num_bytes = number, 0
        num_bytes += part.num_bytes
    parts.append(slices[start:])
    return parts
