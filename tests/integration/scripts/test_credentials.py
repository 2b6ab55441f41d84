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

from scripts.credentials.__main__ import main
from scripts.credentials.credential_set import (
    CredentialSet,
    find_set,
    make_set,
    write_nats_context,
)
from scripts.embedded.nats_server import NatsServer
from scripts.embedded.redis_server import RedisServer, check_redis
from scripts.launcher.errors import LaunchError
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import SegmentChange, replicas_in, segment_key
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


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_no_password_is_told_to_a_server_that_speaks_no_tls(
    made: CredentialSet, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = bytearray()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "max_payload": 1 << 20, "auth_required": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while data := await reader.read(65_536):
            heard.extend(data)
            writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls = TlsFiles(made.ca) if scheme == "nats" else None
    async with server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await Bus.connect(url, name="us", access=NatsAccess("gateway", "secret", tls))
    assert heard == b""
    assert "speaks no TLS" in caplog.text


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


async def test_the_index_user_may_do_all_that_the_index_asks_of_redis(
    made: CredentialSet, tmp_path: Path
) -> None:
    with TestServer(RedisServer(tmp_path, made), tmp_path / "log") as server:
        own = made.folder / "cache-index"
        settings = CacheIndexSettings(redis_url=server.url, _secrets_dir=own)
        store = RedisStore(server.url, options=settings.redis_options())
        try:
            await store.probe()
            registration = await store.register("n", "1", b"root")
            assert registration is not None
            assert await store.claim_format("m", {"dtype": "fp32"}) == {"dtype": "fp32"}
            assert await store.hold_writers(["n"], "w", 60_000) == {"n"}
            number = await store.open_session("n", "1", "w")
            assert number is not None
            segment = segment_key(b"root", b"headhead")
            fields = b"".join(at.to_bytes(8, "big") for at in range(200))
            await store.write(number, [SegmentChange(segment, b"", fields, bytes(200))])
            assert await store.commit("n", number, 1)
            found = [replicas_in(page) async for page in store.segments()]
            assert sum(map(len, found)) == 200
            assert await store.num_hashes() > 0
            assert await store.memory_bytes() > 0
            await store.set_horizon(3)
            assert await store.hold_collector("c", 1_000)
            assert await store.hold_lead("t", "c", 1_000)
            await store.collect({segment: ({number}, fields)})
            assert not [one async for page in store.segments() for one in page]
            await store.set_collected((await store.collection_due())[0])
            assert await store.last_number() >= number
            await store.release_writers(["n"], "w")
            await store.retire("n", "1", registration)
            assert await store.nodes() == []
        finally:
            await store.close()


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
    for name in ("ca", "cert", "key"):
        with pytest.raises(ValueError, match=f"MOONPOOL_REDIS_{name.upper()}"):
            CacheIndexSettings(redis_url="redis://h:1", **{f"redis_{name}": made.ca})


@pytest.mark.parametrize("name", ["cert", "key", "password"])
def test_what_would_not_be_shown_to_nats_is_refused(made: CredentialSet, name: str) -> None:
    with pytest.raises(ValueError, match=f"MOONPOOL_NATS_{name.upper()} needs"):
        CacheIndexSettings(**{f"nats_{name}": str(made.ca)})


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


def test_only_an_unfinished_set_is_made_anew_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "set"
    made = make_set(folder)
    (folder / "format").unlink()
    before = made.password("gateway")
    monkeypatch.setattr("sys.argv", ["credentials", str(folder), "--keep"])
    main()
    assert find_set(folder).password("gateway") != before
    other = tmp_path / "other" / "notes"
    other.mkdir(parents=True)
    (other / "mine.txt").write_text("mine")
    monkeypatch.setattr("sys.argv", ["credentials", str(other.parent), "--keep"])
    with pytest.raises(SystemExit):
        main()
    assert (other / "mine.txt").read_text() == "mine"


async def test_a_wrong_address_of_redis_is_said_without_its_password() -> None:
    with pytest.raises(LaunchError) as caught:
        await check_redis("http://user:secret@h:1")
    assert "secret" not in caught.value.message


def test_the_context_for_the_nats_cli_is_whole(made: CredentialSet, tmp_path: Path) -> None:
    path = write_nats_context(made.operator(), "nats://h:1", "d", tmp_path / "context.json")
    context = json.loads(path.read_text())
    assert context["user"] == "admin"
    assert Path(context["ca"]).exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_set_of_another_version_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "set"
    make_set(folder)
    (folder / "format").write_text("1")
    before = (folder / "gateway" / "moonpool_nats_password").read_text()
    with pytest.raises(LaunchError, match="another version"):
        find_set(folder)
    monkeypatch.setattr("sys.argv", ["credentials", str(folder), "--keep"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "another version" in capsys.readouterr().err
    assert (folder / "gateway" / "moonpool_nats_password").read_text() == before
