"""uvicorn inside our own loop and life: no signal handlers, no polling, a bounded end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from services.gateway.http_protocol import Protocol
from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError

STOP_TIMEOUT_S = 2
KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection (5 s, load balancers 60 s): whoever closes one first
must be the one who would use it next, or a question meets a connection that is being closed."""
BACKLOG = 1_024


class _Server(uvicorn.Server):
    """Sleeps until it is told to stop; signals stay with the service."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.told_to_stop.wait()


class HttpServer:
    """Owns the listening socket."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
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
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        _load_tls(config, cert, key)
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server = _Server(config)
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ServiceError(
            ErrorCode.BAD_REQUEST,
            f"MOONPOOL_HTTP_PORT={port}: cannot listen on {host}: {error.strerror or error}; "
            "choose another port or end the process that has it",
        ) from error
    return listening
