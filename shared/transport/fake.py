"""A transport for tests: peers are buffers in this process, and what goes wrong is programmed."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.transport.base import Peer, PeerLost, Slice, check_slices
from shared.transport.settling import settled


@dataclass(slots=True)
class FakePeer:
    """A peer's memory: `blocks[slot]` are bytes, `generations[slot]` their use."""

    blocks: npt.NDArray[np.uint8]
    generations: list[int]
    latency_s: float = 0.0
    """Before each slice."""
    bytes_per_s: float | None = None
    """Each slice takes its bytes' time on top; calls do not share it."""
    is_alive: bool = True
    dies_after_slices: int | None = None
    flips_slice: int | None = None
    """The slice (counted from the first read on) that arrives with a wrong byte."""
    loses_slice: int | None = None
    """The slice (counted likewise) that never arrives: the call waits until its end."""
    order: random.Random | None = None
    """Slices of a call arrive in an order of its making; None: in turn."""
    late_s: float = 0.0
    """A call that is cancelled, late or aborted ends only after so long, however often it is
    cancelled, and its slice lands meanwhile."""
    slices_read: int = 0
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def delay_s(self, num_bytes: int) -> float:
        return self.latency_s + (num_bytes / self.bytes_per_s if self.bytes_per_s else 0.0)


class FakeTransport:
    """Reads from FakePeers into an array of own blocks, and writes to them."""

    def __init__(self, own: npt.NDArray[np.uint8], name: str = "fake") -> None:
        self.name = name
        self.on_peer_lost: Callable[[Peer, str], None] | None = None
        self._own = own
        self.peers: dict[tuple[str, str], FakePeer] = {}

    async def connect(self, peer: Peer) -> None:
        self._find(peer)

    async def read(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._move(peer, slices, timeout_s, is_write=False)

    async def write(self, peer: Peer, slices: Sequence[Slice], *, timeout_s: float) -> int:
        return await self._move(peer, slices, timeout_s, is_write=True)

    def abort(self, peer: Peer) -> None:
        memory = self.peers.pop((peer.node, peer.incarnation), None)
        if memory is not None:
            memory.aborted.set()

    def die(self, peer: Peer, reason: str = "died") -> None:
        """The peer's process is gone: calls that run raise, and the loss is told."""
        memory = self._find(peer)
        memory.is_alive = False
        memory.aborted.set()
        if self.on_peer_lost is not None:
            self.on_peer_lost(peer, reason)

    async def close(self) -> None:
        for node, incarnation in list(self.peers):
            self.abort(Peer(node, incarnation))

    async def _move(
        self, peer: Peer, slices: Sequence[Slice], timeout_s: float, *, is_write: bool
    ) -> int:
        check_slices(slices, num_slots=len(self._own), block_bytes=self._own.shape[1])
        memory = self._find(peer)
        order = list(range(len(slices)))
        if memory.order is not None:
            memory.order.shuffle(order)
        arrived: set[int] = set()
        flying: Slice | None = None
        try:
            async with asyncio.timeout(timeout_s):
                for number in order:
                    flying = slices[number]
                    await self._pause(memory, peer, flying)
                    if not _holds(memory, flying):
                        if memory.order is None:
                            break  # what comes after it is not asked for any more
                        continue
                    self._copy(memory, flying, is_write=is_write)
                    arrived.add(number)
        except (asyncio.CancelledError, TimeoutError, PeerLost):
            if memory.late_s and flying is not None:
                await settled([asyncio.ensure_future(asyncio.sleep(memory.late_s))])
                self._copy(memory, flying, is_write=is_write)
            raise
        return next((n for n in range(len(slices)) if n not in arrived), len(slices))

    def _find(self, peer: Peer) -> FakePeer:
        memory = self.peers.get((peer.node, peer.incarnation))
        if memory is None or not memory.is_alive:
            raise PeerLost(f"node {peer.node} is gone")
        return memory

    async def _pause(self, memory: FakePeer, peer: Peer, part: Slice) -> None:
        if memory.dies_after_slices is not None and (
            memory.slices_read >= memory.dies_after_slices
        ):
            memory.is_alive = False
        is_lost = memory.loses_slice is not None and memory.slices_read == memory.loses_slice
        try:
            async with asyncio.timeout(None if is_lost else memory.delay_s(part.num_bytes)):
                await memory.aborted.wait()
        except TimeoutError:
            pass
        else:
            raise PeerLost(f"node {peer.node}: moving was aborted")
        if not memory.is_alive:
            raise PeerLost(f"node {peer.node} died")

    def _copy(self, memory: FakePeer, part: Slice, *, is_write: bool) -> None:
        where = slice(part.offset, part.offset + part.num_bytes)
        if is_write:
            memory.blocks[part.peer_slot][where] = self._own[part.slot][where]
            return
        self._own[part.slot][where] = memory.blocks[part.peer_slot][where]
        if memory.slices_read == memory.flips_slice:
            self._own[part.slot][part.offset] ^= 1
        memory.slices_read += 1


def _holds(memory: FakePeer, part: Slice) -> bool:
    is_slot = 0 <= part.peer_slot < len(memory.generations)
    return is_slot and memory.generations[part.peer_slot] == part.peer_generation
