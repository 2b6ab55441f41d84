"""A client of streamed answers that costs nearly nothing: one connection, one request at a time.

A whole HTTP client, or the turns of an event loop, take as long to read an answer as the gateway to
write it, and would be measured with it. So it blocks (use it in a thread), and says of each event
when its last byte was here, before that is looked into.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from shared.runtime.clock import monotonic_s

CHUNK_END = b"\r\n"
READ_BYTES = 64 << 10


class HttpStreamError(Exception):
    """The other side answered something else than a stream of events."""


class Arrived(NamedTuple):
    """One event, and when it had arrived."""

    time_s: float
    event: dict[str, Any]


class HttpStream:
    """`with HttpStream(url, timeout_s=60) as http: http.send(http.post(path, body, headers))`, then
    `for arrived in http.events(): ...`."""

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        """`timeout_s`: for the next bytes; TimeoutError when they do not come."""
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._read = b""
        self._read_s = 0.0

    def __enter__(self) -> Self:
        self._socket = socket.create_connection((self._host, self._port), self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """The bytes of a request."""
        data = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: {self._host}:{self._port}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    def send(self, request: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(request)

    def events(self) -> Iterator[Arrived]:
        """Of the answer, as they come; raises HttpStreamError for any but 200."""
        head = self._until(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
            raise HttpStreamError(head.decode("latin-1").strip())
        text = b""
        while part := self._chunk():
            *whole, text = (text + part).split(b"\n\n")
            for event in whole:
                said = event.removeprefix(b"data: ")
                if said != b"[DONE]":
                    yield Arrived(self._read_s, json.loads(said))

    def _chunk(self) -> bytes:
        """Of the body in transfer coding `chunked`; empty: it is over."""
        size = int(self._until(CHUNK_END), 16)
        while len(self._read) < size + len(CHUNK_END):
            self._read_more()
        chunk, self._read = self._read[:size], self._read[size + len(CHUNK_END) :]
        return chunk

    def _until(self, end: bytes) -> bytes:
        while end not in self._read:
            self._read_more()
        found, _, self._read = self._read.partition(end)
        return found

    def _read_more(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(READ_BYTES)
        self._read_s = monotonic_s()
        if not data:
            raise EOFError("the connection was closed within an answer")
        self._read += data
