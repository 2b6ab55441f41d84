"""What moves KV bytes between nodes: the interface that every transport keeps.

A transport copies between a peer's slots and own slots and says how far that is trustworthy. It
never decides what to move, never verifies checksums, never frees slots.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.transport.segment import SegmentInfo


class PeerLost(Exception):
    """The peer cannot be read: gone, another incarnation, not reachable this way."""


class WriteRefused(Exception):
    """This transport lets only the owner of a pool write in it: announce, and let the peer read."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where a node listens for streams, and the secret that lets peers in.

    `capability` goes over the control plane only; on the stream it is proven, never sent.
    """

    host: str
    port: int
    capability: bytes


@dataclass(frozen=True, slots=True)
class RdmaAddress:
    """What a one-sided reader must know: an endpoint's address, two registered regions, the keys.

    The table of generations starts at `table_address` (8 bytes a slot), slot 0 at `data_address`.
    """

    worker_address: bytes
    table_address: int
    table_rkey: bytes
    data_address: int
    data_rkey: bytes
    num_slots: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Peer:
    """One incarnation of a node and how it can be reached; None where it offers no such way."""

    node: str
    incarnation: str
    local: SegmentInfo | None = None
    tcp: TcpAddress | None = None
    rdma: RdmaAddress | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """`num_bytes` at `offset` of a block: a peer's slot and the same place of an own one."""

    peer_slot: int
    peer_generation: int
    slot: int
    offset: int
    num_bytes: int


class Transport(Protocol):
    """Moves slices. When a call has returned, raised or was cancelled, nothing of it moves any
    more: the own slots can be reused at once.
    """

    @property
    def name(self) -> str:
        """As in bills: local, tcp, rdma."""

    on_peer_lost: Callable[[Peer, str], None] | None
    """Called on the loop, once, when a connected peer is found dead while nothing or something
    moves; with the reason. Calls that run raise PeerLost by themselves."""

    async def connect(self, peer: Peer) -> None:
        """Raises PeerLost when this transport cannot reach that very incarnation."""

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        """Peer's slots to own ones, in order; returns how many leading slices hold what was asked.

        Fewer than all: the next slice's slot is in another use by now. Raises PeerLost, or
        TimeoutError when it took longer.
        """

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        """Own slots to a peer's, which must have leased them to us as WRITING; else as `read`.

        Raises WriteRefused where a peer's pool may only be read.
        """

    def abort(self, peer: Peer) -> None:
        """End the calls that run with this peer with PeerLost and forget it."""

    async def close(self) -> None:
        """End everything."""


class DigestingTransport(Transport, Protocol):
    """One that can hash while bytes arrive, when they are in the cache."""

    async def read_digests(
        self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float
    ) -> list[int]:
        """As `read`; returns the xxh3 of each leading slice that holds what was asked, never 0."""


class InvalidSlice(Exception):
    """A slice that is not within a block, or names an own slot that is not there."""


def check_slices(slices: Sequence[Slice], *, num_slots: int, block_bytes: int) -> None:
    """InvalidSlice for what would touch bytes outside of an own slot; peers check theirs."""
    for part in slices:
        if not 0 <= part.slot < num_slots:
            raise InvalidSlice(f"slot {part.slot}: there are {num_slots}")
        if part.offset < 0 or part.num_bytes < 1 or part.offset + part.num_bytes > block_bytes:
            raise InvalidSlice(
                f"{part.num_bytes} bytes at {part.offset}: a block has {block_bytes} bytes"
            )
