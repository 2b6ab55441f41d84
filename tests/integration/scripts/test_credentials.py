"""A set of credentials on the real servers: who gets in, and what for."""

import asyncio
import json
import ssl
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis
import redis.exceptions

from scripts.credentials.credential_set import (
    CredentialSet,
    find_set,
    make_set,
    write_nats_context,
)
from scripts.embedded.nats_server import NatsServer
from scripts.embedded.redis_server import RedisServer
from scripts.launcher.errors import LaunchError
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.settings import CacheIndexSettings
from shared.messages import subjects
from shared.messages.access import ACCESS, SERVICES
from shared.messages.common import Empty, Ok
from shared.runtime.bus import Bus
from shared.runtime.nats_access import NatsAccess
from shared.runtime.tls import TlsFiles
from tests.support.deadline import until
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CredentialSet:
    return make_set(tmp_path_factory.mktemp("set") / "credentials")


@pytest.fixture(scope="module")
def nats(made: CredentialSet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    folder = tmp_path_factory.mktemp("nats")
    with TestServer(NatsServer(folder, made), folder / "log") as server:
        yield server


class Door:
    """Connections by user; `complaints` is what the server said of each."""

    def __init__(self, made: CredentialSet, url: str, stack: AsyncExitStack) -> None:
        self._made, self._url, self._stack = made, url, stack
        self.complaints: list[str] = []

    async def enter(self, who: str) -> Bus:
        tls = TlsFiles(self._made.ca)
        access = NatsAccess(who, self._made.password(who), tls)
        async with asyncio.timeout(10):
            bus = await Bus.connect(self._url, name=who, access=access)

        async def complain(error: Exception) -> None:
            self.complaints.append(str(error).lower())

        bus.client._error_cb = complain
        self._stack.push_async_callback(bus.close)
        return bus


@pytest.fixture
async def door(made: CredentialSet, nats: TestServer) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        yield Door(made, nats.url, stack)


async def test_a_service_does_all_that_is_its_own(door: Door) -> None:
    for who in SERVICES:
        bus = await door.enter(who)
        for subject in ACCESS[who].publish:
            await bus.publish(subject.replace("*", "x"), Empty())
        for subject in ACCESS[who].subscribe:
            await bus.subscribe(subject, Empty, lambda _: None)
        await bus.flush()
    assert door.complaints == []


async def test_a_gateway_can_neither_tell_residency_nor_listen_to_others_answers(
    door: Door,
) -> None:
    heard: list[Empty] = []
    admin, gateway = await door.enter("admin"), await door.enter("gateway")
    await admin.subscribe(subjects.INDEX_EVENTS_ALL, Empty, heard.append)
    await admin.flush()
    await gateway.publish(subjects.index_events("node-1"), Empty())
    await until(lambda: len(door.complaints) == 1, what="refused to publish")
    await gateway.subscribe(f"{subjects.inbox('conductor')}.>", Empty, heard.append)
    await until(lambda: len(door.complaints) == 2, what="refused to subscribe")
    assert all("permissions violation" in one for one in door.complaints)
    await admin.publish(subjects.index_events("node-1"), Empty())
    await until(lambda: heard, what="the admin's own event")
    assert len(heard) == 1


async def test_answers_reach_whoever_asked(door: Door) -> None:
    gateway, conductor = await door.enter("gateway"), await door.enter("conductor")
    await conductor.subscribe(subjects.CONDUCTOR_PLACE, Empty, lambda _: None, is_acknowledged=True)
    await conductor.flush()
    assert await gateway.request(subjects.CONDUCTOR_PLACE, Empty(), Ok, timeout_s=5) == Ok()
    assert door.complaints == []


@pytest.mark.parametrize(
    "change",
    [
        lambda made, other: NatsAccess("gateway", "wrong", TlsFiles(made.ca)),
        lambda made, other: NatsAccess(None, None, TlsFiles(made.ca)),
        lambda made, other: NatsAccess("gateway", made.password("gateway"), None),
        lambda made, other: NatsAccess("gateway", made.password("gateway"), TlsFiles(other.ca)),
    ],
    ids=["password", "nobody", "plain", "other CA"],
)
async def test_who_shows_the_wrong_thing_stays_outside_and_is_told(
    made: CredentialSet,
    nats: TestServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[CredentialSet, CredentialSet], NatsAccess],
) -> None:
    access = change(made, make_set(tmp_path / "other"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await Bus.connect(nats.url, name="stranger", access=access)
    assert "NATS" in caplog.text or access.tls is None
    assert made.password("gateway") not in caplog.text


def test_the_index_user_has_its_keys_and_nothing_else(made: CredentialSet, tmp_path: Path) -> None:
    with TestServer(RedisServer(tmp_path, made), tmp_path / "log") as server:
        password = made.password("cache-index", "redis")
        with redis.Redis.from_url(server.url, username="cache-index", password=password) as index:
            assert index.set("mp:{x}", b"1")
            assert index.eval("return redis.call('GET', KEYS[1])", 1, "mp:{x}") == b"1"
            for refused in (
                lambda: index.set("other", b"1"),
                index.flushall,
                lambda: index.config_get("*"),
                lambda: index.execute_command("SHUTDOWN", "NOSAVE"),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    refused()
        stranger = redis.Redis.from_url(server.url)
        with stranger, pytest.raises(redis.exceptions.AuthenticationError):
            stranger.get("mp:{x}")
        with redis.Redis.from_url(made.redis_url(server.url)) as admin:
            assert admin.flushall()


async def test_the_index_speaks_to_redis_over_tls(made: CredentialSet, tmp_path: Path) -> None:
    """The packaged Valkey has no TLS: something in front of it speaks it."""
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(made.redis_folder / "cert.pem", made.redis_folder / "key.pem")
    with TestServer(RedisServer(tmp_path, made), tmp_path / "log") as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

        front = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=server_tls)
        url = f"rediss://127.0.0.1:{front.sockets[0].getsockname()[1]}/0"
        own = made.folder / "cache-index"
        settings = CacheIndexSettings(redis_url=url, redis_ca=own / "ca.pem", _secrets_dir=own)
        store = RedisStore(url, options=settings.redis_options())
        async with front:
            assert await store.probe()
            await store.close()
            other = make_set(tmp_path / "other")
            stranger = settings.model_copy(update={"redis_ca": other.ca})
            store = RedisStore(url, options=stranger.redis_options())
            with pytest.raises(StoreAway):
                await store.probe()
            await store.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()


def test_a_ca_without_tls_in_the_url_is_refused(made: CredentialSet) -> None:
    with pytest.raises(ValueError, match="MOONPOOL_REDIS_CA"):
        CacheIndexSettings(redis_url="redis://h:1", redis_ca=made.ca)


def test_each_has_a_private_folder_of_its_own(made: CredentialSet) -> None:
    assert find_set(made.folder) == made
    for path in made.folder.rglob("*"):
        is_secret = path.is_file() and path.name not in ("cert.pem", "format")
        assert not is_secret or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    passwords = {made.password(who) for who in (*SERVICES, "admin")}
    assert len(passwords) == len(SERVICES) + 1
    for who in SERVICES:
        texts = [path.read_text() for path in (made.folder / who).iterdir()]
        assert not any(other in text for other in passwords for text in texts if text != other)
    with pytest.raises(LaunchError, match="already"):
        make_set(made.folder)
    with pytest.raises(LaunchError, match="no set"):
        find_set(made.folder / "nats")


def test_the_context_for_the_nats_cli_is_whole(made: CredentialSet, tmp_path: Path) -> None:
    path = write_nats_context(made.operator(), "nats://h:1", "d", tmp_path / "context.json")
    context = json.loads(path.read_text())
    assert context["user"] == "admin"
    assert Path(context["ca"]).exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
