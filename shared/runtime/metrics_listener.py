"""A small HTTP server for scrapers: GET /metrics, nothing else, on the loop of the process."""

import asyncio
import logging
import socket
from collections.abc import Callable

from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.metrics")
Render = Callable[[str], tuple[bytes, str]]
"""From the Accept header to a body and its content type."""
EVERY_ADDRESS = ("0.0.0.0", "::", "")
MAX_CONNECTIONS = 16
MAX_HEAD_BYTES = 16 << 10
IDLE_S = 90.0
"""For the next question on a connection; Prometheus keeps its own open."""
WRITE_TIMEOUT_S = 10.0


class MetricsListener:
    """Owns the socket and its connections, from `start` to `stop`."""

    def __init__(self, render: Render, host: str, port: int) -> None:
        self._render = render
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Raises ServiceError when the port cannot be had."""
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"MOONPOOL_METRICS_PORT={self._port}: cannot listen on {self._host}: "
                f"{error.strerror or error}; choose another port, or 0 for a free one",
            ) from error
        self._port = int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """How others reach it; a listener on all addresses is found by the machine's name."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        if self._host in EVERY_ADDRESS:
            host = socket.gethostname()
        return f"http://{host}:{self._port}/metrics"

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(writer)
        try:
            while await self._answer_one(reader, writer):
                continue
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("a scraper went, was silent for long or speaks no HTTP")
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False: the connection ends."""
        async with asyncio.timeout(IDLE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, separator, value in (line.partition(":") for line in lines)
            if separator
        }
        method, _, rest = first.partition(" ")
        path = rest.split(" ")[0].split("?")[0]
        is_kept = rest.endswith("HTTP/1.1") and headers.get("connection", "").lower() != "close"
        is_kept = is_kept and "content-length" not in headers and "transfer-encoding" not in headers
        status, body, content_type = "404 Not Found", b"only /metrics is here\n", "text/plain"
        if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"GET /metrics\n"
        elif path == "/metrics":
            body, content_type = self._render(headers.get("accept", ""))
            status = "200 OK"
        connection = "keep-alive" if is_kept else "close"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: {connection}\r\n\r\n".encode("latin-1")
        )
        if method != "HEAD":
            writer.write(body)
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await writer.drain()
        return is_kept
