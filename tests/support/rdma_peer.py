"""A peer process of the rdma transport: a segment that others read and write one-sided.

`python -m tests.support.rdma_peer FOLDER NODE OPTIONS WRITES BLOCK_BYTES NUM_SLOTS`: says how it
can be reached as a JSON line, then does what lines on stdin say, until there are no more.
"""

import asyncio
import base64
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from scripts.launcher.processes import PR_SET_PDEATHSIG
from shared.transport.base import Peer, RdmaAddress, Slice
from shared.transport.node_files import NodeFiles, NodeLock
from shared.transport.rdma import RdmaTransport
from shared.transport.rdma_options import RdmaOptions, Writes, parse_options
from shared.transport.segment import TABLE_OFFSET, Segment, SegmentInfo, data_offset_of
from tests.support.servers import _libc

READY_TIMEOUT_S = 60.0


class RdmaPeer:
    """Such a process as a test sees it: its memory, its address, its end."""

    def __init__(
        self,
        folder: Path,
        node: str,
        options: str,
        *,
        block_bytes: int,
        num_slots: int,
        writes: Writes = "always",
    ) -> None:
        self.files = NodeFiles(folder, node, "1")
        argv = [sys.executable, "-P", "-m", "tests.support.rdma_peer"]
        self._process = subprocess.Popen(
            [*argv, str(folder), node, options, writes, str(block_bytes), str(num_slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        self.address = address_from(self._answer())
        nonce, data_offset = bytes.fromhex(self.ask("nonce")), data_offset_of(num_slots)
        info = SegmentInfo(self.files.segment, nonce, num_slots, block_bytes, data_offset)
        self.segment = Segment.open(info, is_writable=True)
        self.peer = Peer(node, "1", self.segment.info, rdma=self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def block(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.segment.block(slot)

    def generation(self, slot: int) -> int:
        return int(self.segment.generations[slot])

    def reuse(self, slot: int) -> None:
        """As the peer would: its table is written, here through the file."""
        value = struct.pack("<Q", self.generation(slot) + 1)
        with self.files.segment.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), value, TABLE_OFFSET + 8 * slot)

    def ask(self, command: str, **arguments: object) -> Any:
        """Have it do something; its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    @property
    def is_living(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """By end of input; the exit code must be 0 unless it was killed."""
        if self._process.stdin is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.stdin.close()
            try:
                assert self._process.wait(20) == 0
            finally:
                self._process.kill()
                self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self.segment.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        timer = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"the peer ended with {self._process.wait(5)}"
        return json.loads(line)


def address_from(answer: dict[str, Any]) -> RdmaAddress:
    values: dict[str, Any] = {
        k: base64.b64decode(v) if isinstance(v, str) else v for k, v in answer.items()
    }
    return RdmaAddress(**values)


def answer_of(address: RdmaAddress) -> dict[str, Any]:
    return {
        k: base64.b64encode(v).decode() if isinstance(v, bytes) else v
        for k, v in asdict(address).items()
    }


@contextmanager
def own_segment(folder: Path, *, block_bytes: int, num_slots: int) -> Iterator[Segment]:
    segment = Segment.create(folder / "me.1.seg", num_slots=num_slots, block_bytes=block_bytes)
    try:
        yield segment
    finally:
        segment.info.path.unlink()
        segment.close()


async def serve(
    folder: str, node: str, options: str, writes: Writes, block_bytes: int, num_slots: int
) -> None:
    files = NodeFiles(Path(folder), node, "1")
    lock = NodeLock(files)
    segment = Segment.create(files.segment, num_slots=num_slots, block_bytes=block_bytes)
    segment.generations[:] = 1
    transport = await RdmaTransport.open(
        segment, RdmaOptions(ucx_options=parse_options(options), writes=writes)
    )
    writing: list[asyncio.Future[int]] = []
    try:
        print(json.dumps(answer_of(transport.describe())), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            match request["command"]:
                case "write":
                    peer = Peer(request["node"], "1", rdma=address_from(request["address"]))
                    slices = [Slice(**part) for part in request["slices"]]
                    work = transport.write(peer, slices, timeout_s=60)
                    writing.append(asyncio.ensure_future(work))
                    answer: Any = "begun"
                case "written":
                    await asyncio.wait(writing, timeout=30)
                    answer = [
                        str(each.exception()) if each.exception() else each.result()
                        for each in writing
                    ]
                case "fence":
                    await transport.fence()
                    answer = answer_of(transport.describe())
                case "nonce":
                    answer = segment.info.nonce.hex()
                case "wakeups":
                    answer = transport.num_wakeups
                case other:
                    raise ValueError(f"unknown command {other}")
            print(json.dumps(answer), flush=True)
    finally:
        await transport.close()
        segment.close()
        files.remove()
        lock.release()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:5], *map(int, sys.argv[5:])))  # type: ignore[arg-type]
