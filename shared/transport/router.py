"""Chooses the transport for each peer: the first in order that both have and that works.

A transport that failed for a peer is left for a time that grows, and tried again after it. Never
looks at addresses: two nodes of one host may share nothing, and two with one address a host.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from shared.transport.backoff import Backoff
from shared.transport.base import DigestingTransport, Peer, PeerLost, Slice, Transport, WriteRefused

log = logging.getLogger("moonpool.transport")
MAX_REMEMBERED = 1024
CONNECT_S = 5.0
JUDGED_AFTER_S = 0.25
"""A call that had less time says nothing about its transport when it is late."""
T = TypeVar("T")
Key = tuple[str, str, str]
"""Node, incarnation, transport."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a call did."""

    num_slices: int
    """Leading ones that hold what was asked."""
    transport: str
    digests: tuple[int, ...] = ()
    """xxh3 of each of them, where the transport hashed what arrived; else empty."""


class Router:
    """A transport of transports."""

    name = "router"

    def __init__(
        self, transports: Sequence[Transport], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._transports = list(transports)
        self._now_s = now_s
        self._backoffs: OrderedDict[Key, Backoff] = OrderedDict()
        for transport in self._transports:
            transport.on_peer_lost = self._on_lost_by(transport)

    @property
    def names(self) -> list[str]:
        return [transport.name for transport in self._transports]

    @property
    def resting(self) -> dict[str, list[str]]:
        """By node: transports that failed for it and are not tried for a moment."""
        now_s = self._now_s()
        found: dict[str, list[str]] = {}
        for (node, _, name), backoff in self._backoffs.items():
            if not backoff.is_over(now_s) and name not in found.get(node, ()):
                found.setdefault(node, []).append(name)
        return found

    async def connect(self, peer: Peer) -> None:
        await self._first_working(peer, lambda each, _: each.connect(peer), None)

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return (await self.fetch(peer, slices, timeout_s=timeout_s)).num_slices

    async def fetch(
        self,
        peer: Peer,
        slices: Sequence[Slice],
        *,
        timeout_s: float,
        with_digests: bool = False,
    ) -> Moved:
        """As `read`; says which transport it was, and the digests of what arrived if it can."""

        async def move(transport: Transport, left_s: float) -> Moved:
            if with_digests and hasattr(transport, "read_digests"):
                hashing = cast(DigestingTransport, transport)
                digests = await hashing.read_digests(peer, slices, timeout_s=left_s)
                return Moved(len(digests), transport.name, tuple(digests))
            count = await transport.read(peer, slices, timeout_s=left_s)
            return Moved(count, transport.name)

        return await self._first_working(peer, move, timeout_s)

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._first_working(
            peer,
            lambda transport, left_s: transport.write(peer, slices, timeout_s=left_s),
            timeout_s,
        )

    def abort(self, peer: Peer) -> None:
        for transport in self._transports:
            transport.abort(peer)

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()

    async def _first_working(
        self,
        peer: Peer,
        call: Callable[[Transport, float], Awaitable[T]],
        timeout_s: float | None,
    ) -> T:
        """The first answer; PeerLost or WriteRefused of the last when none gives one.

        TimeoutError of one that takes all the time: the next call goes over another.
        """
        deadline_s = self._now_s() + (timeout_s if timeout_s is not None else CONNECT_S)
        failure: PeerLost | WriteRefused | None = None
        for transport in self._candidates(peer):
            left_s = deadline_s - self._now_s()
            if failure is not None and left_s <= 0:
                break
            try:
                answer = await call(transport, max(left_s, 0.0))
            except TimeoutError:
                if left_s >= JUDGED_AFTER_S:
                    self._note_failure(peer, transport, f"it took longer than {left_s:.2g} s")
                raise
            except PeerLost as error:
                failure = error
                self._note_failure(peer, transport, str(error))
            except WriteRefused as error:
                failure = error
            else:
                self._note_success(peer, transport)
                return answer
        raise failure or PeerLost(
            f"node {peer.node} offers none of what this node has: {', '.join(self.names)}"
        )

    def _candidates(self, peer: Peer) -> list[Transport]:
        """Those that the peer offers and that are not paused; one at least is always tried."""
        offered = [each for each in self._transports if _is_offered(peer, each.name)]
        now_s = self._now_s()
        ready = [each for each in offered if self._backoff(peer, each).is_over(now_s)]
        if ready or not offered:
            return ready
        return [min(offered, key=lambda each: self._backoff(peer, each).until_s)]

    def _backoff(self, peer: Peer, transport: Transport) -> Backoff:
        return self._backoffs.get(_key(peer, transport)) or Backoff()

    def _note_failure(self, peer: Peer, transport: Transport, reason: str) -> None:
        key = _key(peer, transport)
        backoff = self._backoffs.setdefault(key, Backoff())
        backoff.failed(self._now_s())
        self._backoffs.move_to_end(key)
        if len(self._backoffs) > MAX_REMEMBERED:
            self._backoffs.popitem(last=False)
        # Once: a node of another host is tried over `local` again and again.
        level = logging.INFO if backoff.num_failures == 1 else logging.DEBUG
        log.log(level, "node %s is not reached over %s: %s", peer.node, transport.name, reason)

    def _note_success(self, peer: Peer, transport: Transport) -> None:
        self._backoffs.pop(_key(peer, transport), None)

    def _on_lost_by(self, transport: Transport) -> Callable[[Peer, str], None]:
        def tell(peer: Peer, reason: str) -> None:
            if self.on_peer_lost is not None:
                self.on_peer_lost(peer, f"{transport.name}: {reason}")

        return tell


def _key(peer: Peer, transport: Transport) -> Key:
    return (peer.node, peer.incarnation, transport.name)


def _is_offered(peer: Peer, name: str) -> bool:
    """A transport that has no address of its own in `Peer` finds its peers by name."""
    return getattr(peer, name, name) is not None
