"""RdmaTransport against the contract: UCX over cma, over tcp, and over RDMA where a device is.

Each way has a peer process. Without libucp all is skipped; CI installs it.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contracts.transport_contract import TransportContract
from tests.support.rdma_bench import RdmaBench, RdmaPeers, rdma_bench, rdma_peers
from tests.support.rdma_lanes import LANES, skip_without


@pytest.fixture(scope="module")
def peers() -> Iterator[RdmaPeers]:
    yield from rdma_peers()


@pytest.fixture(params=LANES)
async def bench(request: pytest.FixtureRequest, peers: RdmaPeers) -> AsyncIterator[RdmaBench]:
    async with rdma_bench(peers, skip_without(request.param)) as bench:
        yield bench


class TestRdmaTransport(TransportContract):
    pass
