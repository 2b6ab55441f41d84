"""uvicorn inside our own loop and life: no signal handlers, no polling, an end in steps."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from services.gateway.http_protocol import Connections, Protocol
from services.gateway.listening import inherit, listen
from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError

STOP_TIMEOUT_S = 2
KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection (5 s, load balancers 60 s): whoever closes one first
must be the one who would use it next, or a question meets a connection that is being closed."""
CLIENT_IDLE_S = 6.0
"""At the end: longer than clients keep an idle connection, so that none asks on one that closes."""
ACCEPTED_S, HANDSHAKE_S = 0.05, 1.0
"""Until a connection that was accepted last is seen, without and with TLS."""


class _Server(uvicorn.Server):
    """Sleeps until it is told to stop; signals stay with the service."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.server_state = connections
        self.told_to_stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.told_to_stop.wait()

    def close_listeners(self) -> None:
        if self.started:
            for server in self.servers:
                server.close()


class HttpServer:
    """Owns the listening socket. Its end: `say_close`, `stop_accepting`, `all_left`, `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        fd: int | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        """With `fd` it listens on that socket, which is open already, and not on host and port."""
        self._host = host
        self._scheme = "http" if cert is None else "https"
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,  # nothing here asks where a request came from
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        _load_tls(config, cert, key)
        self._socket = listen(host, port) if fd is None else inherit(fd)
        self.port = int(self._socket.getsockname()[1])
        self._connections = Connections()
        self._server = _Server(config, self._connections)
        self._stopped = asyncio.Event()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self.port}"

    async def run(self) -> None:
        """Serve until `stop`; a task of the service."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            self._stopped.set()

    def say_close(self) -> None:
        """The answers from now on are the last of their connections, and say so."""
        self._connections.end_after_next()

    def stop_accepting(self) -> None:
        """What waits in the queue of a socket that was given stays there for a successor."""
        self._server.close_listeners()

    async def all_left(self) -> None:
        """Until every connection has ended; one is closed when it was idle for CLIENT_IDLE_S."""
        await asyncio.sleep(HANDSHAKE_S if self._scheme == "https" else ACCEPTED_S)
        while self._connections.connections:
            self._connections.changed.clear()
            next_s = self._connections.close_idle(CLIENT_IDLE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s):
                    await self._connections.changed.wait()

    async def stop(self) -> None:
        """Take no more connections; running responses get a moment, then are cut."""
        self._server.should_exit = True
        self._server.told_to_stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S + 1):
                await self._stopped.wait()


def _load_tls(config: uvicorn.Config, cert: Path | None, key: Path | None) -> None:
    """Now, so that wrong files are said by their settings before anything is served."""
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ServiceError(
            ErrorCode.BAD_REQUEST,
            f"MOONPOOL_HTTP_CERT={cert}, MOONPOOL_HTTP_KEY={key}: cannot be used: {error}",
        ) from error
