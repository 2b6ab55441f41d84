"""One side of a raw transfer: a segment, its transports, and the measured calls of the reader.

Runs in a process of its own (see peer_lines). Times the bytes alone: no bus, no bookkeeping.
"""

import asyncio
import ctypes
import random
import resource
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import loopback
from shared.transport.base import Peer, Slice, TcpAddress
from shared.transport.copying import load_copier
from shared.transport.local import LocalTransport
from shared.transport.node_files import NodeFiles, NodeLock
from shared.transport.segment import Segment, SegmentInfo
from shared.transport.tcp import TcpTransport

TIMEOUT_S = 120.0


class Side:
    """Slots of one block size; the other side's are read in an order of its own."""

    def __init__(self, folder: Path, name: str, pool_bytes: int, block_bytes: int, cache: Path):
        files = NodeFiles(folder, name, "1")
        self._lock = NodeLock(files)
        num_slots = pool_bytes // block_bytes
        self._segment = Segment.create(files.segment, num_slots=num_slots, block_bytes=block_bytes)
        self._segment.generations[:] = 1
        # Touched, and with bytes that no two slots share.
        self._segment.bytes[:] = 0x5A
        for slot in range(num_slots):
            self._segment.block(slot)[:64] = slot % 251
        self._name = name
        self._runner = asyncio.Runner()
        copier = load_copier(cache)
        self._copier = copier.name
        self._local = {
            threads: LocalTransport(self._segment, num_threads=threads, copier=copier)
            for threads in (1, 2)
        }
        self._tcp: TcpTransport
        self._peer: Peer
        self._source: Segment
        self._stream: socket.socket
        self._memcpy: Any = ctypes.CDLL(None).memcpy
        self._memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._random = random.Random(name)

    def listen(self) -> dict[str, Any]:
        """What the other side must know."""

        async def start() -> TcpAddress:
            self._tcp = TcpTransport(self._segment, self._name, "1")
            return await self._tcp.listen("127.0.0.1", range(1))

        address, info = self._runner.run(start()), self._segment.info
        return {
            "node": self._name,
            "port": address.port,
            "plain_port": loopback.serve([self._block(slot) for slot in range(info.num_slots)]),
            "capability": address.capability.hex(),
            "path": str(info.path),
            "nonce": info.nonce.hex(),
            "num_slots": info.num_slots,
            "block_bytes": info.block_bytes,
            "data_offset": info.data_offset,
            "copier": self._copier,
        }

    def connect(self, other: dict[str, Any]) -> None:
        info = SegmentInfo(
            Path(other["path"]),
            bytes.fromhex(other["nonce"]),
            other["num_slots"],
            other["block_bytes"],
            other["data_offset"],
        )
        tcp = TcpAddress("127.0.0.1", other["port"], bytes.fromhex(other["capability"]))
        self._peer = Peer(other["node"], "1", local=info, tcp=tcp)
        self._source = Segment.open(info, is_writable=False)
        self._stream = socket.create_connection(("127.0.0.1", other["plain_port"]))

    def cpu_s(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def memcpy(self, num_blocks: int) -> dict[str, float]:
        """libc's memcpy in one thread, over the same mappings."""
        size = self._segment.info.block_bytes
        pairs = [
            (
                self._segment.bytes.ctypes.data + part.slot * size,
                self._source.bytes.ctypes.data + part.peer_slot * size,
            )
            for part in self._slices(num_blocks)
        ]

        def run() -> None:
            for target, source in pairs:
                self._memcpy(target, source, size)

        return self._timed(run)

    def read(
        self, transport: str, num_blocks: int, *, threads: int = 1, with_digests: bool = False
    ) -> dict[str, float]:
        chosen = self._local[threads] if transport == "local" else self._tcp
        slices = self._slices(num_blocks)

        async def move() -> int:
            if with_digests:
                found = await chosen.read_digests(self._peer, slices, timeout_s=TIMEOUT_S)
                return len(found)
            return await chosen.read(self._peer, slices, timeout_s=TIMEOUT_S)

        def run() -> None:
            if self._runner.run(move()) != num_blocks:
                raise RuntimeError(f"{transport}: not all blocks came")

        found = self._timed(run)
        for part in slices[:4]:
            if self._segment.block(part.slot)[0] != part.peer_slot % 251:
                raise RuntimeError(f"{transport}: slot {part.slot} has other bytes")
        return found

    def loopback(self, num_blocks: int) -> dict[str, float]:
        """Plain calls on one stream."""
        blocks = [self._block(part.slot) for part in self._slices(num_blocks)]
        return self._timed(lambda: loopback.receive(self._stream, blocks))

    def _block(self, slot: int) -> memoryview:
        size = self._segment.info.block_bytes
        return self._segment.data[slot * size : (slot + 1) * size]

    def _slices(self, num_blocks: int) -> Sequence[Slice]:
        info = self._segment.info
        theirs = self._random.sample(range(info.num_slots), num_blocks)
        ours = self._random.sample(range(info.num_slots), num_blocks)
        return [
            Slice(there, 1, here, 0, info.block_bytes)
            for there, here in zip(theirs, ours, strict=True)
        ]

    def _timed(self, run: Callable[[], None]) -> dict[str, float]:
        cpu_s, start_s = self.cpu_s(), time.perf_counter()
        run()
        return {"seconds": time.perf_counter() - start_s, "cpu_s": self.cpu_s() - cpu_s}


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Callable[..., Any]]]:
    side = Side(
        Path(settings["folder"]),
        settings["name"],
        settings["pool_bytes"],
        settings["block_bytes"],
        Path(settings["cache_dir"]),
    )
    return side.listen(), {
        "connect": side.connect,
        "memcpy": side.memcpy,
        "loopback": side.loopback,
        "read": side.read,
        "cpu_s": side.cpu_s,
    }
