"""Measures what this machine moves: memory, disk, and the way to a peer. A few seconds each."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.bench.calibrate import disk_bytes_per_s
from scripts.cli.output import CommandError
from shared.runtime.clock import monotonic_s

LINK_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
MEMORY_BYTES = 128 << 20
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Machine:
    memory_bytes_per_s: float
    disk_bytes_per_s: float
    link_bytes_per_s: float | None


def measure_machine(link: str | None, folder: Path) -> Machine:
    speed = asyncio.run(measure_link(link)) if link else None
    return Machine(memory_bytes_per_s(), disk_bytes_per_s(folder), speed)


def memory_bytes_per_s() -> float:
    """Of a copy, the best of three."""
    source = np.ones(MEMORY_BYTES, np.uint8)
    target = np.zeros_like(source)
    best_s = float("inf")
    for _ in range(3):
        started_s = monotonic_s()
        np.copyto(target, source)
        best_s = min(best_s, monotonic_s() - started_s)
    return MEMORY_BYTES / best_s


async def measure_link(peer: str) -> float:
    """Bytes a second over one TCP stream to a machine that runs `moonpool assess --serve`."""
    host, _, port = peer.rpartition(":")
    if not host or not port.isdigit():
        raise CommandError(f"--link: {peer!r} is not host:port")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            chunk = bytes(CHUNK_BYTES)
            started_s = monotonic_s()
            for _ in range(LINK_BYTES // CHUNK_BYTES):
                writer.write(chunk)
                await writer.drain()
            writer.write_eof()
            await reader.readexactly(1)
            seconds = monotonic_s() - started_s
            writer.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise CommandError(
            f"--link: {peer} did not take {LINK_BYTES >> 20} MB: {error or type(error).__name__}",
            hint="run `moonpool assess --serve PORT` there",
        ) from None
    return LINK_BYTES / seconds


async def serve(host: str, port: int, on_ready: Callable[[int], None] = lambda _port: None) -> None:
    """Takes what peers send and says when it has all; until cancelled. Port 0: a free one."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(CHUNK_BYTES):
            pass
        writer.write(b"1")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, host, port, family=socket.AF_INET)
    async with server:
        on_ready(int(server.sockets[0].getsockname()[1]))
        await server.serve_forever()
