"""The bench's own client of streams: chunks may end anywhere, connections are kept."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from scripts.bench.http_stream import Arrived, HttpStream, HttpStreamError
from shared.runtime.clock import monotonic_s

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Answer = Callable[[bytes], list[bytes]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Its address, and the requests it has got."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            got.append(head + await reader.readexactly(length))
            for part in answer(got[-1]):
                writer.write(part)
                await writer.drain()

    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(until_closed, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", got


async def test_events_are_put_together_and_the_connection_is_used_again() -> None:
    def answer(_: bytes) -> list[bytes]:
        parts = [b'data: {"a"', b': 1}\n\ndata: {"b": 2}\n', b"\ndata: [DONE]\n\n", b""]
        return [HEAD, *(chunk(part) for part in parts)]

    def ask(http: HttpStream) -> list[Arrived]:
        http.send(http.post("/x", {"q": 1}, {"x-test": "1"}))
        return list(http.events())

    async with server(answer) as (url, got):
        with HttpStream(url, timeout_s=5) as http:
            for _ in range(2):
                start_s = monotonic_s()
                first, second = await asyncio.to_thread(ask, http)
                assert [first.event, second.event] == [{"a": 1}, {"b": 2}]
                assert start_s < first.time_s <= second.time_s < monotonic_s()
    assert len(got) == 2
    assert got[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert b"x-test: 1" in got[0]
    assert got[0].endswith(b'{"q": 1}')


async def test_an_answer_that_is_no_stream_is_an_error_with_its_status() -> None:
    def answer(_: bytes) -> list[bytes]:
        return [b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"]

    async with server(answer) as (url, _):
        with HttpStream(url, timeout_s=5) as http:
            http.send(http.post("/", {}, {}))
            with pytest.raises(HttpStreamError, match="503"):
                await asyncio.to_thread(next, http.events())


async def test_a_connection_that_ends_or_says_nothing_is_an_error() -> None:
    async with server(lambda _: [HEAD, chunk(b"data: {}\n\n")]) as (url, _):
        with HttpStream(url, timeout_s=0.2) as http:
            http.send(http.post("/", {}, {}))
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(list, http.events())
    listening = socket.create_server(("127.0.0.1", 0))
    with HttpStream(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=5) as http:
        accepted, _ = listening.accept()
        accepted.close()
        listening.close()
        with pytest.raises((EOFError, ConnectionError)):
            list(http.events())
