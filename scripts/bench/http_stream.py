"""A client of streamed answers that costs nearly nothing: one connection, one request at a time.

A whole HTTP client takes as long to read an answer as the gateway to write it, and would be
measured with it.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

CHUNK_END = b"\r\n"


class HttpStreamError(Exception):
    """The other side answered something else than a stream of events."""


class HttpStream:
    """`async with HttpStream(url) as http: async for event in http.post(path, body): ...`"""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[dict[str, Any]]:
        """The events of the answer as they come; raises HttpStreamError for any but 200."""
        assert self._reader is not None
        assert self._writer is not None
        data = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: {self._host}:{self._port}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
            raise HttpStreamError(head.decode("latin-1").strip())
        text = b""
        while part := await self._chunk(self._reader):
            *whole, text = (text + part).split(b"\n\n")
            for event in whole:
                said = event.removeprefix(b"data: ")
                if said != b"[DONE]":
                    yield json.loads(said)

    async def _chunk(self, reader: asyncio.StreamReader) -> bytes:
        """Of the body in transfer coding `chunked`; empty: it is over."""
        size = int(await reader.readuntil(CHUNK_END), 16)
        return (await reader.readexactly(size + len(CHUNK_END)))[:size]
