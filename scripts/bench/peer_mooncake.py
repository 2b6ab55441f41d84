"""Measures Mooncake's transfer engine and its store over TCP, in its own environment.

One process is the target (`role` target: memory that others read and write; store: it has the
store's memory), another the caller. Imports nothing of moonpool.
"""

import ctypes
import mmap
import os
import random
import resource
import time
from typing import Any

from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore

HOST = "127.0.0.1"
REMOVE_S = 15.0
UNKNOWN_KEY = -704


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Memory:
    """Touched memory of its own; kept for the life of the process."""

    def __init__(self, num_bytes: int) -> None:
        self._mapped = mmap.mmap(-1, num_bytes)
        self._mapped.write(b"\x5a" * num_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapped))
        self.num_bytes = num_bytes


class Engine:
    """A transfer engine with registered memory."""

    def __init__(self, pool_bytes: int, block_bytes: int) -> None:
        self._memory = Memory(pool_bytes)
        self._block_bytes = block_bytes
        self._num_blocks = pool_bytes // block_bytes
        self._engine = TransferEngine()
        if self._engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("the transfer engine does not start")
        if self._engine.register_memory(self._memory.address, pool_bytes):
            raise RuntimeError("memory is not registered")
        self._random = random.Random(7)

    def describe(self) -> dict[str, Any]:
        return {
            "target": f"{HOST}:{self._engine.get_rpc_port()}",
            "address": self._memory.address,
        }

    def move(self, other: dict[str, Any], num_blocks: int, is_write: bool) -> dict[str, float]:
        size = self._block_bytes
        mine = self._random.sample(range(self._num_blocks), num_blocks)
        theirs = self._random.sample(range(self._num_blocks), num_blocks)
        here = [self._memory.address + block * size for block in mine]
        there = [other["address"] + block * size for block in theirs]
        call = (
            self._engine.batch_transfer_sync_write
            if is_write
            else self._engine.batch_transfer_sync_read
        )
        used_s, start_s = cpu_s(), time.perf_counter()
        code = call(other["target"], here, there, [size] * num_blocks)
        took_s = time.perf_counter() - start_s
        if code:
            raise RuntimeError(f"the transfer engine answers {code}")
        return {"seconds": took_s, "cpu_s": cpu_s() - used_s}


class Store:
    """A client of the store; `segment_bytes` of its memory belong to the store."""

    def __init__(self, master: str, pool_bytes: int, block_bytes: int, segment_bytes: int) -> None:
        self._memory = Memory(pool_bytes)
        self._block_bytes = block_bytes
        self._store = MooncakeDistributedStore()
        code = self._store.setup(HOST, "P2PHANDSHAKE", segment_bytes, 64 << 20, "tcp", "", master)
        if code:
            raise RuntimeError(f"the store does not start: {code}")
        if self._store.register_buffer(self._memory.address, pool_bytes):
            raise RuntimeError("the buffer is not registered")
        self._round = 0
        self._old: list[str] = []

    def put_get(self, num_blocks: int) -> dict[str, float]:
        """Put a batch, get it back; a batch of another name each time, removed after it."""
        self._forget()
        size = self._block_bytes
        self._round += 1
        keys = [f"{os.getpid()}-{self._round}-{number}" for number in range(num_blocks)]
        self._old = keys
        here = [self._memory.address + number * size for number in range(num_blocks)]
        sizes = [size] * num_blocks
        used_s, start_s = cpu_s(), time.perf_counter()
        codes = self._store.batch_put_from(keys, here, sizes)
        middle_s = time.perf_counter()
        if any(codes):
            raise RuntimeError(f"put answers {codes}")
        got = self._store.batch_get_into(keys, here, sizes)
        end_s = time.perf_counter()
        if got != sizes:
            raise RuntimeError(f"get answers {got}")
        used_s = cpu_s() - used_s
        return {"put_s": middle_s - start_s, "get_s": end_s - middle_s, "cpu_s": used_s}

    def _forget(self) -> None:
        """The last batch goes once the lease that its get took is over."""
        deadline_s = time.monotonic() + REMOVE_S
        while self._old and time.monotonic() < deadline_s:
            self._old = [
                key for key in self._old if self._store.remove(key) not in (0, UNKNOWN_KEY)
            ]
            time.sleep(0.05)


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if settings["kind"] == "engine":
        engine = Engine(settings["pool_bytes"], settings["block_bytes"])
        return engine.describe(), {"move": engine.move, "cpu_s": cpu_s}
    store = Store(
        settings["master"],
        settings["pool_bytes"],
        settings["block_bytes"],
        settings["segment_bytes"],
    )
    return {}, {"put_get": store.put_get, "cpu_s": cpu_s}
