"""The listener of metrics by itself: its port, and what it does under bad questions."""

import asyncio

import pytest

from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError
from shared.runtime.metrics_listener import MAX_CONNECTIONS, MetricsListener
from tests.support.deadline import until


def render(accept: str) -> tuple[bytes, str]:
    return f"accepts {accept}\n".encode(), "text/plain"


async def ask(listener: MetricsListener, question: bytes) -> bytes:
    port = int(listener.url.split(":")[-1].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(question)
        return await reader.read()
    except ConnectionError:  # closed before it had read the question
        return b""
    finally:
        writer.close()


async def test_a_port_that_is_taken_is_said_by_its_setting() -> None:
    first = MetricsListener(render, "127.0.0.1", 0)
    await first.start()
    port = int(first.url.split(":")[-1].split("/")[0])
    try:
        with pytest.raises(ServiceError, match="MOONPOOL_METRICS_PORT") as refused:
            await MetricsListener(render, "127.0.0.1", port).start()
        assert refused.value.code == ErrorCode.BAD_REQUEST
    finally:
        first.stop()


async def test_a_connection_is_kept_for_the_next_scrape() -> None:
    listener = MetricsListener(render, "127.0.0.1", 0)
    await listener.start()
    try:
        twice = b"GET /metrics HTTP/1.1\r\nAccept: text/x\r\n\r\n"
        last = b"GET /metrics?x=1 HTTP/1.1\r\nConnection: close\r\n\r\n"
        answer = await ask(listener, twice + last)
    finally:
        listener.stop()
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"accepts text/x\n") == 1


async def test_more_connections_than_a_scraper_has_are_closed() -> None:
    listener = MetricsListener(render, "127.0.0.1", 0)
    await listener.start()
    port = int(listener.url.split(":")[-1].split("/")[0])
    open_ones = []
    try:
        for _ in range(MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")  # it is being served
            open_ones.append(writer)
        assert await ask(listener, b"") == b""
        open_ones.pop().close()
        question = b"GET /metrics HTTP/1.0\r\n\r\n"
        await until(lambda: ask(listener, question), what="it has seen that one went")
    finally:
        listener.stop()
        for writer in open_ones:
            writer.close()


async def test_after_stop_nobody_is_answered() -> None:
    listener = MetricsListener(render, "127.0.0.1", 0)
    await listener.start()
    listener.stop()
    with pytest.raises(ConnectionError):
        await ask(listener, b"GET /metrics HTTP/1.0\r\n\r\n")


async def test_a_listener_on_all_addresses_is_found_by_the_machines_name() -> None:
    listener = MetricsListener(render, "0.0.0.0", 0)
    await listener.start()
    listener.stop()
    assert "0.0.0.0" not in listener.url
