"""A TcpTransport with one peer in this process."""

from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.transport.base import Peer
from shared.transport.segment import Segment
from shared.transport.tcp import TcpTransport
from shared.transport.tcp_wire import Names
from tests.contracts.transport_contract import BLOCK_BYTES, NUM_SLOTS


class TcpBench:
    def __init__(self, folder: Path) -> None:
        self.mine = self._segment(folder / "me.1.seg")
        self.segment = self._segment(folder / "n.1.seg")
        self.segment.generations[:] = 1
        self.granted: set[tuple[int, int]] = set()
        self.transport = TcpTransport(self.mine, "me", "1", num_streams=2)
        self.server = TcpTransport(self.segment, "n", "1", may_write=self._may_write)
        self.peer: Peer

    @classmethod
    async def make(cls, folder: Path, host: str = "127.0.0.1") -> Self:
        bench = cls(folder)
        bench.peer = Peer("n", "1", tcp=await bench.server.listen(host, range(1)))
        return bench

    async def close(self) -> None:
        await self.transport.close()
        await self.server.close()
        self.segment.close()
        self.mine.close()

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.mine.block(slot)

    def theirs(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.segment.block(slot)

    def generation(self, slot: int) -> int:
        return int(self.segment.generations[slot])

    def reuse(self, slot: int) -> None:
        self.segment.generations[slot] += np.uint64(1)

    def grant(self, slot: int) -> None:
        self.granted.add((slot, self.generation(slot)))

    def kill_peer(self) -> None:
        self.server.server.cut_all()

    def slow_down(self) -> None:
        """20,000 blocks of 1 MiB take seconds by themselves."""

    def _may_write(self, peer: Names, slot: int, generation: int) -> bool:
        return peer.node == "me" and (slot, generation) in self.granted

    def _segment(self, path: Path) -> Segment:
        return Segment.create(path, num_slots=NUM_SLOTS, block_bytes=BLOCK_BYTES)
