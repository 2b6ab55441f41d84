"""RdmaTransport against the contract: UCX over cma, over tcp, and over RDMA where there is a device.

Each lane has its own peer process. Without libucp all is skipped; CI installs it.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from shared.transport.rdma import RdmaTransport
from shared.transport.rdma_options import RdmaOptions
from shared.transport.segment import Segment
from shared.transport.ucx_context import parse_options
from tests.contracts.transport_contract import BLOCK_BYTES, NUM_SLOTS, TransportContract
from tests.support.rdma_lanes import LANES, skip_without
from tests.support.rdma_peer import RdmaPeer, own_segment
from tests.support.transfer_node import SharedFolder


class RdmaBench:
    def __init__(self, transport: RdmaTransport, mine: Segment, process: RdmaPeer) -> None:
        self.transport = transport
        self.process = process
        self.peer = process.peer
        self._mine = mine

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        return self._mine.block(slot)

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


@pytest.fixture
def folder() -> Iterator[Path]:
    with SharedFolder() as shared:
        yield shared.path


@pytest.fixture(params=LANES)
async def bench(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[RdmaBench]:
    options = skip_without(request.param)
    with own_segment(folder, block_bytes=BLOCK_BYTES, num_slots=NUM_SLOTS) as mine:
        transport = await RdmaTransport.open(mine, RdmaOptions(ucx_options=parse_options(options)))
        try:
            with RdmaPeer(
                folder, "n", options, block_bytes=BLOCK_BYTES, num_slots=NUM_SLOTS
            ) as peer:
                yield RdmaBench(transport, mine, peer)
        finally:
            await transport.close()


class TestRdmaTransport(TransportContract):
    pass
