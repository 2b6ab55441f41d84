"""What moves KV bytes between nodes: the interface that every transport keeps.

A transport copies from a peer's slots into own slots and says how far that is trustworthy. It
never decides what to move, never verifies checksums, never frees slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.transport.segment import SegmentInfo


class PeerLost(Exception):
    """The peer cannot be read: gone, another incarnation, not reachable this way."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One incarnation of a node and how it can be reached."""

    node: str
    incarnation: str
    local: SegmentInfo | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """`num_bytes` at `offset` of a block, from a peer's slot to the same place of an own slot."""

    peer_slot: int
    peer_generation: int
    slot: int
    offset: int
    num_bytes: int


class Transport(Protocol):
    """Reads from peers. When `read` has returned, raised or was cancelled, nothing writes any more:
    the own slots can be reused at once.
    """

    @property
    def name(self) -> str:
        """As in bills: local, tcp, rdma."""

    async def connect(self, peer: Peer) -> None:
        """Raises PeerLost when this transport cannot reach that very incarnation."""

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        """Copy in order; returns how many leading slices hold what was asked for.

        Fewer than all: the next slice's slot is in another use by now. Raises PeerLost, or
        TimeoutError when it took longer.
        """

    def abort(self, peer: Peer) -> None:
        """End the reads that run from this peer with PeerLost and forget it."""

    async def close(self) -> None:
        """End everything."""
