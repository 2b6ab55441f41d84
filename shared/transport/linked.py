"""One transport over several links to each peer: pieces are spread, and leave a sick link.

Each link is a transport of its own (a NIC, a path). A piece is moved again over another only when
the first one's call has ended, so nothing of it can land late.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shared.transport.base import InvalidSlice, Peer, PeerLost, Slice, Transport, WriteRefused
from shared.transport.links import LinkSet
from shared.transport.sieve import Sieve

PIECE_BYTES = 4 << 20
PIECES_PER_LINK = 2
"""In flight at once: one moves while the other is asked for."""
SLOW_FACTOR = 8.0
SLOW_S = 0.25
"""A piece that takes so many times its predicted time, and this on top, is taken elsewhere."""
MAX_PEERS = 256
LONGEST_S = 3600.0
"""Of the last link that is left: the call's own time ends it."""


@dataclass(slots=True, eq=False)
class _Piece:
    slices: Sequence[Slice]
    done: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.slices)


class LinkedTransport:
    """Reads and writes over `links`; `preferred` names those near the memory, default all."""

    def __init__(
        self,
        name: str,
        links: Mapping[str, Transport],
        preferred: Sequence[str] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._links = dict(links)
        self._preferred = list(links) if preferred is None else list(preferred)
        self._now_s = now_s
        self._sets: Sieve[tuple[str, str], LinkSet] = Sieve(MAX_PEERS)
        for link_name, link in self._links.items():
            link.on_peer_lost = self._on_lost_by(link_name)

    def link_set(self, peer: Peer) -> LinkSet:
        key = (peer.node, peer.incarnation)
        found = self._sets.get(key)
        if found is None:
            secondary = [name for name in self._links if name not in self._preferred]
            found = LinkSet(self._preferred, secondary)
            self._sets.put(key, found)
            self._sets.evict(lambda _: False)
        return found

    async def connect(self, peer: Peer) -> None:
        """One link is enough."""
        failure: PeerLost | None = None
        for name, link in self._links.items():
            try:
                await link.connect(peer)
            except PeerLost as error:
                failure = error
            else:
                self.link_set(peer).reached(name)
                return
        raise failure or PeerLost(f"node {peer.node}: there are no links")

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._move(peer, slices, timeout_s, is_write=False)

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._move(peer, slices, timeout_s, is_write=True)

    def abort(self, peer: Peer) -> None:
        for link in self._links.values():
            link.abort(peer)
        self._sets.pop((peer.node, peer.incarnation))

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    def _on_lost_by(self, name: str) -> Callable[[Peer, str], None]:
        """A peer is lost when the last link that reached it has lost it; told once."""

        def tell(peer: Peer, reason: str) -> None:
            links = self._sets.peek((peer.node, peer.incarnation))
            if links is None:
                return
            links.lost(name, self._now_s())
            if links.num_reached == 0:
                self._sets.pop((peer.node, peer.incarnation))
                if self.on_peer_lost is not None:
                    self.on_peer_lost(peer, f"{name}: {reason}")

        return tell

    async def _move(
        self, peer: Peer, slices: Sequence[Slice], timeout_s: float, *, is_write: bool
    ) -> int:
        call = _Call(self._links, self.link_set(peer), self._now_s, peer, slices, is_write)
        async with asyncio.timeout(timeout_s):
            await call.run()
        return call.num_leading


class _Call:
    """One read or write on its way."""

    def __init__(
        self,
        links: Mapping[str, Transport],
        link_set: LinkSet,
        now_s: Callable[[], float],
        peer: Peer,
        slices: Sequence[Slice],
        is_write: bool,
    ) -> None:
        self._links = links
        self._set = link_set
        self._now_s = now_s
        self._peer = peer
        self._is_write = is_write
        self._pieces = _pieces(slices)
        self._waiting = deque(self._pieces)
        self._running: dict[str, int] = dict.fromkeys(links, 0)
        self._failed: set[str] = set()
        """Links that this call uses no more."""
        self._failure = ""
        self._changed = asyncio.Event()

    @property
    def num_leading(self) -> int:
        total = 0
        for piece in self._pieces:
            total += piece.done
            if piece.done < len(piece.slices):
                break
        return total

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    while self._waiting and (name := self._choose()) is not None:
                        self._start(group, name)
                    if not any(self._running.values()):
                        if not self._waiting:
                            return
                        raise PeerLost(
                            f"node {self._peer.node}: every link failed: {self._failure}"
                        )
                    await self._changed.wait()
        except BaseExceptionGroup as group:
            # Whoever calls a transport expects what one transport raises.
            told, bugs = group.split((PeerLost, WriteRefused, InvalidSlice))
            if told is None or bugs is not None:
                raise
            raise told.exceptions[0] from None

    def _start(self, group: asyncio.TaskGroup, name: str) -> None:
        piece = self._waiting.popleft()
        self._running[name] += 1
        self._set.started(name, piece.num_bytes, self._now_s())
        group.create_task(self._carry(name, piece), name=f"over {name}")

    def _choose(self) -> str | None:
        """A link for the next piece; one that rests only when no other is left to this call."""
        full = {name for name, count in self._running.items() if count >= PIECES_PER_LINK}
        out = frozenset(full | self._failed)
        chosen = self._set.choose(self._waiting[0].num_bytes, self._now_s(), but=out)
        if chosen is None and not any(self._running.values()):
            chosen = next((name for name in self._links if name not in self._failed), None)
        return chosen

    async def _carry(self, name: str, piece: _Piece) -> None:
        started_s, num_bytes = self._now_s(), piece.num_bytes
        link = self._links[name]
        is_last_hope = len(self._failed) + 1 == len(self._links)
        limit_s = (
            LONGEST_S if is_last_hope else SLOW_S + SLOW_FACTOR * self._set.predicted_s(name, 0)
        )
        move = link.write if self._is_write else link.read
        try:
            piece.done = await move(self._peer, piece.slices, timeout_s=limit_s)
        except (PeerLost, TimeoutError) as error:
            self._set.failed(name, num_bytes, self._now_s())
            self._failed.add(name)
            self._failure = str(error) or f"{name} took longer than {limit_s:.2g} s"
            self._waiting.appendleft(piece)
        except BaseException:
            self._set.given_up(name, num_bytes)
            raise
        else:
            self._set.finished(name, num_bytes, started_s, self._now_s())
            if piece.done < len(piece.slices):
                self._waiting.clear()  # what comes after it is not asked for any more
        finally:
            self._running[name] -= 1
            self._changed.set()


def _pieces(slices: Sequence[Slice]) -> list[_Piece]:
    pieces: list[_Piece] = []
    start = num_bytes = 0
    for number, part in enumerate(slices):
        if number > start and num_bytes + part.num_bytes > PIECE_BYTES:
            pieces.append(_Piece(slices[start:number]))
            start, num_bytes = number, 0
        num_bytes += part.num_bytes
    if slices:
        pieces.append(_Piece(slices[start:]))
    return pieces
