"""A cluster over three NATS servers loses no request when one of them goes, whichever it is."""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.credentials.credential_set import make_set
from tests.support.cluster import HostedCluster, dummy_options
from tests.support.load import NUM_USERS, Load
from tests.support.nats_cluster import NUM_SERVERS, nats_cluster, url_of
from tests.support.servers import TestServer

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]


@dataclass(frozen=True, slots=True)
class Clustered:
    servers: list[TestServer]
    load: Load


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    folder: Path = tmp_path_factory.mktemp("nats-cluster")
    made = make_set(folder / "credentials")
    with nats_cluster(folder, made) as servers:
        options = dummy_options(
            nats_url=url_of(servers), credentials=made.folder, conductors=2, cache_indexes=2
        )
        with HostedCluster(options) as cluster:
            yield Clustered(servers, Load(cluster))


@pytest.mark.parametrize("number", range(NUM_SERVERS))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_no_request_is_lost_when_a_nats_server_goes(
    clustered: Clustered, number: int, how: signal.Signals
) -> None:
    server, load = clustered.servers[number], clustered.load

    async def fault() -> None:
        await asyncio.to_thread(server.stop, how)

    try:
        outcomes = await load.during(fault, before_s=1.0, after_s=4.0)
    finally:
        server.start()
    print(f"\nserver {number}, {how.name}: {dict(outcomes.counts)}")
    assert outcomes.errors == []
    assert outcomes.num_right >= NUM_USERS
    load.cluster.wait_ready()
    await load.all_is_given_back()
