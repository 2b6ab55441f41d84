"""RdmaTransport of the test process, and peers in processes that are kept for a whole module."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.transport.rdma import RdmaTransport
from shared.transport.rdma_options import RdmaOptions, Writes, parse_options
from shared.transport.segment import Segment
from tests.contracts.transport_contract import BLOCK_BYTES, NUM_SLOTS
from tests.support.rdma_peer import RdmaPeer, own_segment
from tests.support.transfer_node import SharedFolder


class RdmaPeers:
    """One living peer for each way of UCX: a start takes a second, ten where CPUs are emulated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._peers: dict[str, RdmaPeer] = {}
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for peer in self._peers.values():
            peer.end()

    def get(self, options: str) -> RdmaPeer:
        peer = self._peers.get(options)
        if peer is not None and peer.is_living:
            return peer
        if peer is not None:
            peer.end()
        self._count += 1
        peer = RdmaPeer(
            self.folder,
            f"n{self._count}",
            options,
            block_bytes=BLOCK_BYTES,
            num_slots=NUM_SLOTS,
        )
        self._peers[options] = peer
        return peer


class RdmaBench:
    """As the contract of transports wants it."""

    def __init__(self, transport: RdmaTransport, mine: Segment, process: RdmaPeer) -> None:
        self.transport = transport
        self.process = process
        self.peer = process.peer
        self.mine = mine

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.mine.block(slot)

    def theirs(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.process.block(slot)

    def generation(self, slot: int) -> int:
        return self.process.generation(slot)

    def reuse(self, slot: int) -> None:
        self.process.reuse(slot)

    def kill_peer(self) -> None:
        self.process.kill()

    def slow_down(self) -> None:
        """20,000 blocks of 1 MiB take seconds by themselves."""


def rdma_peers() -> Iterator[RdmaPeers]:
    """For a fixture of a module."""
    with SharedFolder() as shared, RdmaPeers(shared.path) as peers:
        yield peers


@asynccontextmanager
async def rdma_bench(
    peers: RdmaPeers, ucx: str, writes: Writes = "never"
) -> AsyncIterator[RdmaBench]:
    process = peers.get(ucx)
    with own_segment(peers.folder, block_bytes=BLOCK_BYTES, num_slots=NUM_SLOTS) as mine:
        mine.generations[:] = 1
        options = RdmaOptions(ucx_options=parse_options(ucx), writes=writes)
        transport = await RdmaTransport.open(mine, options)
        try:
            yield RdmaBench(transport, mine, process)
        finally:
            await transport.close()
