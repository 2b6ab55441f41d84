"""The short way through the client of NATS: order, back-pressure, reconnects, failing handlers."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import nats.errors
import pytest

from shared.messages.common import Empty, Ok
from shared.messages.envelope import Message, encode
from shared.messages.subjects import MICRO_PING
from shared.runtime.bus import PENDING_BYTES, Bus
from shared.runtime.errors import BusTimeout, ServiceError
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks
from tests.support.deadline import PATIENCE, until
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration
LOG = logging.getLogger("test")
SUBJECT = "moonpool.t.direct"
LARGE_BYTES = 64 << 10


class Number(Message):
    value: int
    filling: bytes = b""


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="test")
    yield bus
    await bus.close()


@pytest.fixture
async def own_bus(own_nats: TestServer) -> AsyncIterator[Bus]:
    """At a server that the test may stop."""
    bus = await Bus.connect(own_nats.url, name="test")
    yield bus
    await bus.close()


async def test_messages_of_all_sizes_come_in_order(bus: Bus) -> None:
    seen: list[int] = []
    await bus.subscribe(SUBJECT, Number, lambda number: seen.append(number.value))
    sizes = [0, 10, 5_000, 200_000, 1_000_000, 3]
    for value in range(120):
        await bus.publish(SUBJECT, Number(value=value, filling=b"x" * sizes[value % 6]))
    await until(lambda: len(seen) == 120, what="all of them")
    assert seen == list(range(120))


async def test_a_listener_that_fails_ends_nothing(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    def handler(_subject: str, _reply: str, data: bytes, _headers: bytes) -> None:
        seen.append(data)
        if data == b"bad":
            raise RuntimeError("planted")

    await bus.client.listen(SUBJECT, handler)
    for data in (b"bad", b"good"):
        await bus.client.publish(SUBJECT, data)
    await until(lambda: seen == [b"bad", b"good"], what="both")
    assert "planted" in caplog.text
    assert bus.is_connected


async def test_a_subject_cannot_carry_another_command(bus: Bus) -> None:
    for subject in ("a b", "a\r\nPUB b 0\r\n", ""):
        with pytest.raises(nats.errors.BadSubjectError):
            await bus.client.publish(subject, b"")
        with pytest.raises(nats.errors.BadSubjectError):
            await bus.client.publish("a", b"", reply=subject or " ")
        with pytest.raises(nats.errors.BadSubjectError):
            await bus.client.listen(subject, lambda *_: None)


async def test_too_large_a_message_is_refused_and_the_connection_stays(bus: Bus) -> None:
    with pytest.raises(ServiceError, match="maximum payload"):
        await bus.publish(SUBJECT, Number(value=1, filling=b"x" * bus.max_payload_bytes))
    await bus.flush()
    assert bus.is_connected


async def test_after_a_restart_subscriptions_are_back_and_what_was_kept_comes(
    own_nats: TestServer, own_bus: Bus
) -> None:
    seen: list[int] = []
    handled = own_bus.subscribe(
        SUBJECT, Number, lambda number: seen.append(number.value), is_acknowledged=True
    )
    await handled
    await own_bus.request(SUBJECT, Number(value=1), Ok, timeout_s=10)
    own_nats.stop()
    await until(lambda: not own_bus.is_connected, what="cut off")
    for value in (2, 3):
        await own_bus.publish(SUBJECT, Number(value=value))
    own_nats.start()
    await until(lambda: own_bus.is_connected, what="connected again")
    await own_bus.request(SUBJECT, Number(value=4), Ok, timeout_s=10)
    assert seen == [1, 2, 3, 4]


async def test_to_a_server_that_does_not_read_a_bounded_amount_is_kept_in_order(
    own_nats: TestServer, own_bus: Bus
) -> None:
    seen: list[int] = []
    await own_bus.subscribe(SUBJECT, Number, lambda number: seen.append(number.value))
    await own_bus.flush()
    os.kill(own_nats.pid, signal.SIGSTOP)
    sent = 0
    filling = b"x" * LARGE_BYTES
    while own_bus.client.send(SUBJECT, _packed(sent, filling)):
        sent += 1
        assert sent * LARGE_BYTES < 2 * PENDING_BYTES, "kept without a bound"
    assert sent * LARGE_BYTES > PENDING_BYTES // 2
    os.kill(own_nats.pid, signal.SIGCONT)
    await until(lambda: len(seen) == sent, timeout_s=30, what="all of them")
    assert seen == list(range(sent))


@pytest.fixture
def ear(nats_url: str) -> Iterator[socket.socket]:
    """Hears SUBJECT without a loop, so that it shows whether a message has left."""
    host, _, port = nats_url.rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=10 * PATIENCE) as connection:
        connection.sendall(f"CONNECT {{}}\r\nSUB {SUBJECT} 1\r\nPING\r\n".encode())
        _read_until(connection, b"PONG")
        yield connection


async def test_what_is_published_at_once_has_left_before_the_publisher_goes_on(
    bus: Bus, ear: socket.socket
) -> None:
    await bus.publish(SUBJECT, Number(value=1), at_once=True)
    assert b"MSG" in _read_until(ear, encode(Number(value=1)))  # the loop stands still meanwhile


async def test_a_question_that_is_asked_now_leaves_with_the_next_turn(
    bus: Bus, ear: socket.socket
) -> None:
    asked = bus.ask(SUBJECT, Number(value=2), Ok, timeout_s=0.01)
    await asyncio.sleep(0)
    assert b"MSG" in _read_until(ear, encode(Number(value=2)))
    with pytest.raises(BusTimeout):
        await asked


async def test_who_is_cancelled_while_it_asks_leaves_nothing_behind(bus: Bus) -> None:
    await bus.subscribe(SUBJECT, Empty, lambda _: None)
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(bus.request(SUBJECT, Empty(), Ok, timeout_s=30)) for _ in range(20)
        ]
        await asyncio.sleep(0)
        for task in asking:
            task.cancel()
    assert all(task.cancelled() for task in asking)
    assert not bus.client._answers


async def test_a_crowd_that_asks_who_is_there_is_answered(bus: Bus) -> None:
    """By nats-py, in its own time: more wait for it than are read at once."""
    heard = 0

    def handler(*_: object) -> None:
        nonlocal heard
        heard += 1

    async with asyncio.TaskGroup() as group:
        service = MicroService(bus, Tasks(group, LOG), LOG)
        await service.start(
            name="crowd", version="0.0.1", description="t", metadata={}, endpoints=[]
        )
        inbox = bus.client.new_inbox()
        await bus.client.listen(inbox, handler)
        for _ in range(3_000):
            await bus.client.publish(f"{MICRO_PING}.crowd", b"", reply=inbox)
        await until(lambda: heard == 3_000, timeout_s=30, what="all answers")
        await service.stop()


async def test_a_server_that_talks_nonsense_is_left() -> None:
    await _is_connected_again_after(b"HELLO\r\n", closes=False)


@pytest.mark.parametrize("said", ["Authorization Violation", "Slow Consumer", "Stale Connection"])
async def test_a_server_that_refuses_and_closes_is_come_back_to(said: str) -> None:
    await _is_connected_again_after(f"-ERR '{said}'\r\n".encode(), closes=True)


async def test_after_one_flush_all_has_come(bus: Bus) -> None:
    seen: list[int] = []
    await bus.subscribe(SUBJECT, Number, lambda number: seen.append(number.value))
    for value in range(100):
        await bus.publish(SUBJECT, Number(value=value))
        await bus.client.flush()
        assert len(seen) == value + 1


async def test_a_service_that_stops_answers_what_it_was_sent(nats_url: str, bus: Bus) -> None:
    """Asked all the time, while members of its group come and go."""
    over = asyncio.Event()

    async def answer(_: Empty) -> Ok:
        return Ok()

    async def ask_on() -> None:
        while not over.is_set():
            await bus.request(SUBJECT, Empty(), Ok, timeout_s=10)

    async def serve(group: asyncio.TaskGroup) -> tuple[MicroService, Bus]:
        member = await Bus.connect(nats_url, name="member")
        service = MicroService(member, Tasks(group, LOG), LOG)
        endpoint = Endpoint("answer", SUBJECT, Empty, Ok, answer, "t")
        await service.start(
            name="group", version="0.0.1", description="t", metadata={}, endpoints=[endpoint]
        )
        await member.flush()
        return service, member

    async with asyncio.TaskGroup() as group:
        staying, *passing = [await serve(group) for _ in range(5)]
        users = [group.create_task(ask_on()) for _ in range(20)]
        for service, member in passing:
            await service.stop()
            await member.close()
        over.set()
        await asyncio.wait(users)
        await staying[0].stop()
        await staying[1].close()


async def _is_connected_again_after(said: bytes, *, closes: bool) -> None:
    """A server that says this once it has greeted the first connection."""
    num_connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        writer.write(b'INFO {"version": "2.11.0", "max_payload": 1000, "headers": true}\r\n')
        while not (await reader.readline()).startswith(b"PING"):
            continue
        writer.write(b"PONG\r\n")
        is_first = num_connections == 1
        if is_first:
            writer.write(said)
        if not (is_first and closes):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(20):
        bus = await Bus.connect(f"nats://127.0.0.1:{port}", name="test")
        await until(lambda: num_connections == 2 and bus.is_connected, what="it came again")
        await bus.client.close()
    server.close()
    await server.wait_closed()


def _read_until(connection: socket.socket, end: bytes) -> bytes:
    read = b""
    while end not in read:
        part = connection.recv(4_096)
        assert part, "the server closed the connection"
        read += part
    return read


def _packed(value: int, filling: bytes) -> bytes:
    return encode(Number(value=value, filling=filling))
