"""Real NATS and Redis servers for tests, on free ports, ended with the test process."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest

from scripts.embedded.nats_server import HOST, NatsServer
from scripts.embedded.redis_cluster import form_cluster
from scripts.embedded.redis_server import RedisServer, find_redis_server
from scripts.launcher.errors import LaunchError
from scripts.launcher.processes import PR_SET_PDEATHSIG
from tests.support.deadline import PATIENCE

READY_TIMEOUT_S = 15.0
_libc = ctypes.CDLL(None)


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


class TestServer:
    """One server that a test may end, stop and start again on the same port."""

    __test__ = False  # not a test class

    def __init__(
        self, server: NatsServer | RedisServer, log: Path, more_env: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._log = log
        self._environment = os.environ | (more_env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.url = server.url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self.server.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.server.spec.argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self._wait_ready()

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process = None

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + READY_TIMEOUT_S * PATIENCE
        while time.monotonic() < deadline_s:
            if self._process is None or self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.server.name} did not start:\n{self._log.read_text()}")

    def _answers(self) -> bool:
        port = int(self.url.rpartition(":")[2].partition("/")[0])
        question, answer = (
            (b"", b"INFO") if isinstance(self.server, NatsServer) else (b"PING\r\n", b"+PONG")
        )
        try:
            with socket.create_connection((HOST, port), timeout=PATIENCE) as connection:
                connection.sendall(question)
                return connection.recv(64).startswith((answer, b"-NOAUTH"))
        except OSError:
            return False


def nats_server(folder: Path) -> TestServer:
    return _server(NatsServer, folder)


def redis_server(folder: Path, more_env: Mapping[str, str] | None = None) -> TestServer:
    return _server(RedisServer, folder, more_env)


@contextmanager
def redis_servers(folder: Path, kind: str, num_masters: int) -> Iterator[TestServer]:
    """`kind` "valkey" or "redis"; one server, or one of several that are a cluster."""
    binary = find_redis_server() if kind == "valkey" else _on_path("redis-server")
    with ExitStack() as stack:
        servers = [
            RedisServer(folder / str(number), binary=binary, is_cluster=num_masters > 1)
            for number in range(num_masters)
        ]
        running = [
            stack.enter_context(TestServer(server, folder / f"{number}.log"))
            for number, server in enumerate(servers)
        ]
        if num_masters > 1:
            form_cluster(servers)
        yield running[0]


def _on_path(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} on PATH")
    return Path(found)


def _server(
    kind: type[NatsServer] | type[RedisServer],
    folder: Path,
    more_env: Mapping[str, str] | None = None,
) -> TestServer:
    """A missing binary skips here and fails in CI: a suite that skips in silence is no suite."""
    try:
        return TestServer(kind(folder), folder / "server.log", more_env)
    except LaunchError as error:
        reason = f"{error.message}: {error.hint}"
        if is_ci():
            raise AssertionError(reason) from None
        pytest.skip(reason)
