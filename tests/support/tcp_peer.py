"""A node's streams in a process of their own, to be killed and stopped.

`python -m tests.support.tcp_peer FOLDER NAME SLOTS BLOCK_BYTES`: block n holds bytes of seed n.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from shared.transport.base import Peer, TcpAddress
from shared.transport.segment import Segment
from shared.transport.tcp import TcpTransport

ROOT = Path(__file__).parents[2]


class TcpPeer:
    """The process, as a test sees it."""

    def __init__(self, folder: Path, name: str = "n", *, num_slots: int, block_bytes: int) -> None:
        self.num_slots = num_slots
        argv = [sys.executable, "-P", "-m", "tests.support.tcp_peer"]
        arguments = [str(folder), name, str(num_slots), str(block_bytes)]
        self._process = subprocess.Popen(
            [*argv, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        address = TcpAddress(said["host"], said["port"], bytes.fromhex(said["capability"]))
        self.peer = Peer(name, "1", tcp=address)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def content(slot: int, block_bytes: int) -> np.ndarray:
    return np.random.default_rng(slot).integers(0, 256, block_bytes, dtype=np.uint8)


async def _serve(folder: Path, name: str, num_slots: int, block_bytes: int) -> None:
    segment = Segment.create(folder / f"{name}.1.seg", num_slots=num_slots, block_bytes=block_bytes)
    segment.info.path.unlink()
    segment.generations[:] = 1
    for slot in range(num_slots):
        segment.block(slot)[:] = content(slot, block_bytes)
    transport = TcpTransport(segment, name, "1")
    address = await transport.listen("127.0.0.1", range(1))
    said = {"host": address.host, "port": address.port, "capability": address.capability.hex()}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        await asyncio.to_thread(sys.stdin.read)  # until the test ends
    await transport.close()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
