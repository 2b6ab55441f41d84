"""A transport for tests: peers are buffers in this process; latency, loss and death on demand."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.transport.base import Peer, PeerLost, Slice


@dataclass(slots=True)
class FakePeer:
    """A peer's memory: `blocks[slot]` are bytes, `generations[slot]` their use."""

    blocks: npt.NDArray[np.uint8]
    generations: list[int]
    latency_s: float = 0.0
    """Before each slice."""
    is_alive: bool = True
    dies_after_slices: int | None = None
    flips_slice: int | None = None
    """The slice (counted from the first read on) that arrives with a wrong byte."""
    slices_read: int = 0
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


class FakeTransport:
    """Reads from FakePeers into an array of own blocks."""

    name = "fake"

    def __init__(self, own: npt.NDArray[np.uint8]) -> None:
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._own = own
        self.peers: dict[tuple[str, str], FakePeer] = {}

    async def connect(self, peer: Peer) -> None:
        self._find(peer)

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._move(peer, slices, timeout_s, is_write=False)

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._move(peer, slices, timeout_s, is_write=True)

    async def _move(
        self, peer: Peer, slices: Sequence[Slice], timeout_s: float, *, is_write: bool
    ) -> int:
        async with asyncio.timeout(timeout_s):
            for done, part in enumerate(slices):
                memory = self._find(peer)
                await self._pause(memory, peer)
                if memory.generations[part.peer_slot] != part.peer_generation:
                    return done
                if is_write:
                    where = slice(part.offset, part.offset + part.num_bytes)
                    memory.blocks[part.peer_slot][where] = self._own[part.slot][where]
                else:
                    self._copy(memory, part)
        return len(slices)

    def abort(self, peer: Peer) -> None:
        memory = self.peers.pop((peer.node, peer.incarnation), None)
        if memory is not None:
            memory.aborted.set()

    async def close(self) -> None:
        for node, incarnation in list(self.peers):
            self.abort(Peer(node, incarnation))

    def _find(self, peer: Peer) -> FakePeer:
        memory = self.peers.get((peer.node, peer.incarnation))
        if memory is None or not memory.is_alive:
            raise PeerLost(f"node {peer.node} is gone")
        return memory

    async def _pause(self, memory: FakePeer, peer: Peer) -> None:
        if memory.dies_after_slices is not None and (
            memory.slices_read >= memory.dies_after_slices
        ):
            memory.is_alive = False
        try:
            async with asyncio.timeout(memory.latency_s):
                await memory.aborted.wait()
        except TimeoutError:
            pass
        else:
            raise PeerLost(f"node {peer.node}: reading was aborted")
        if not memory.is_alive:
            raise PeerLost(f"node {peer.node} died")

    def _copy(self, memory: FakePeer, part: Slice) -> None:
        where = slice(part.offset, part.offset + part.num_bytes)
        self._own[part.slot][where] = memory.blocks[part.peer_slot][where]
        if memory.slices_read == memory.flips_slice:
            self._own[part.slot][part.offset] ^= 1
        memory.slices_read += 1
