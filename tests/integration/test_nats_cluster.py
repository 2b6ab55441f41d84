"""A bus over three NATS servers that are one cluster, while some of them are gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from scripts.credentials.credential_set import CredentialSet, make_set
from scripts.embedded.nats_server import find_nats_server
from shared.messages import subjects
from shared.messages.common import Empty, Ok
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.nats_cluster import NatsMember, nats_cluster, url_of
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration
ASKED = subjects.CONDUCTOR_PLACE


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CredentialSet:
    return make_set(tmp_path_factory.mktemp("set") / "credentials")


@pytest.fixture
def servers(made: CredentialSet, tmp_path: Path) -> Iterator[list[TestServer]]:
    with nats_cluster(tmp_path, made) as running:
        yield running


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def enter(stack: AsyncExitStack, made: CredentialSet, who: str, url: str) -> Bus:
    async with asyncio.timeout(20):
        bus = await Bus.connect(url, name=who, access=made.access(who))
    stack.push_async_callback(bus.close)
    return bus


async def listen(stack: AsyncExitStack, made: CredentialSet, url: str) -> Bus:
    bus = await enter(stack, made, "conductor", url)
    await bus.subscribe(ASKED, Empty, lambda _: None, is_acknowledged=True)
    await bus.flush()
    return bus


async def answers(bus: Bus) -> bool:
    try:
        return await bus.request(ASKED, Empty(), Ok, timeout_s=1) == Ok()
    except ServiceError:
        return False


def at(bus: Bus) -> str:
    connected = bus.client.connected_url
    return "" if connected is None else f"nats://{connected.netloc}"


async def test_who_asks_and_who_answers_may_be_at_different_servers(
    made: CredentialSet, servers: list[TestServer], stack: AsyncExitStack
) -> None:
    await listen(stack, made, servers[0].url)
    for server in servers[1:]:
        gateway = await enter(stack, made, "gateway", server.url)
        await until(lambda bus=gateway: answers(bus), what="an answer from another server")


async def test_a_server_that_is_killed_is_left_for_another(
    made: CredentialSet, servers: list[TestServer], stack: AsyncExitStack
) -> None:
    url = url_of(servers)
    conductor = await listen(stack, made, url)
    gateway = await enter(stack, made, "gateway", url)
    for server in servers:
        before = at(conductor), at(gateway)
        server.stop(signal.SIGKILL)
        await until(
            lambda: conductor.is_connected and gateway.is_connected, what="both are connected"
        )
        await until(lambda: answers(gateway), what="an answer over those that are left")
        assert server.url not in (at(conductor), at(gateway)), before
        server.start()


async def test_one_server_of_the_cluster_is_enough_to_know_of_all(
    made: CredentialSet, servers: list[TestServer], stack: AsyncExitStack
) -> None:
    gateway = await enter(stack, made, "gateway", servers[0].url)
    wanted = {server.url.removeprefix("nats://") for server in servers}
    await until(
        lambda: {server.uri.netloc for server in gateway.client._server_pool} == wanted,
        what="the cluster names its servers",
    )
    servers[0].stop(signal.SIGKILL)
    await until(lambda: gateway.is_connected, what="connected to another")
    servers[0].start()


async def test_a_list_whose_first_server_is_away_is_enough_to_begin_with(
    made: CredentialSet, servers: list[TestServer], stack: AsyncExitStack
) -> None:
    servers[0].stop(signal.SIGKILL)
    url = f" {servers[0].url}, nats://no-such-host.invalid:4222 ,{servers[1].url}"
    assert at(await listen(stack, made, url)) in {server.url for server in servers[1:]}
    servers[0].start()


async def test_a_server_that_hangs_is_left_for_another(
    made: CredentialSet,
    servers: list[TestServer],
    stack: AsyncExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.runtime.bus.PING_INTERVAL_S", 0.2)
    gateway = await enter(stack, made, "gateway", url_of(servers))
    (hung,) = [server for server in servers if server.url == at(gateway)]
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        await until(
            lambda: at(gateway) != hung.url and gateway.is_connected,
            timeout_s=30.0,
            what="left it",
        )
    finally:
        os.kill(hung.pid, signal.SIGCONT)


async def test_who_shows_no_certificate_for_peers_joins_no_cluster(
    made: CredentialSet, servers: list[TestServer], tmp_path: Path
) -> None:
    """Redis' certificate is by the same CA; with it nobody becomes a server of the cluster."""
    own, member = made.redis_folder, servers[1].server
    assert isinstance(member, NatsMember)
    config = tmp_path / "stranger.conf"
    config.write_text(
        f'host: "127.0.0.1"\nport: -1\ncluster {{\n  host: "127.0.0.1"\n  port: -1\n'
        f'  name: "moonpool"\n  routes: ["{member.route_url}"]\n'
        f'  tls {{ cert_file: "{own}/cert.pem", key_file: "{own}/key.pem", '
        f'ca_file: "{own}/ca.pem" }}\n}}\n'
    )
    quiet = asyncio.subprocess.DEVNULL
    stranger = await asyncio.create_subprocess_exec(
        find_nats_server(), "-c", config, stdin=quiet, stderr=quiet
    )
    try:
        log = tmp_path / "1.log"
        await until(lambda: "incompatible key usage" in log.read_text(), what="it is refused")
    finally:
        stranger.kill()
        await stranger.wait()
