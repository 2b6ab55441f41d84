"""Measures the index in Redis in a process of its own: bytes a block, and loading all of it."""

import asyncio
import ctypes
import logging
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scripts.embedded.redis_cluster import form_cluster
from scripts.embedded.redis_server import RedisServer, find_redis_server
from scripts.launcher.processes import PR_SET_PDEATHSIG
from services.cache_index.loader import Loader
from services.cache_index.mirror import Mirror
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import SegmentChange, changes_of_run
from shared.kv.ids import KEY_BYTES
from shared.messages.index import StoredRun

ROOT = b"r" * KEY_BYTES
NUM_NODES = 64
CHAIN_BLOCKS = 500
WRITE_FIELDS = 16_384
MATCHES = 3_000
READY_TIMEOUT_S = 15.0
LEASE_MS = 3_600_000
LOG = logging.getLogger("bench")
_libc = ctypes.CDLL(None)


@contextmanager
def running(kind: str, num_masters: int) -> Iterator[str]:
    """The URL of a server, or of one of several that are a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="moonpool-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        servers = [
            RedisServer(folder / str(number), binary=binary_of(kind), is_cluster=num_masters > 1)
            for number in range(num_masters)
        ]
        for server in servers:
            process = subprocess.Popen(
                server.spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
            stack.callback(server.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for server in servers:
            asyncio.run(server.wait_ready(timeout_s=READY_TIMEOUT_S))
        if num_masters > 1:
            form_cluster(servers)
        yield servers[0].url


def binary_of(kind: str) -> Path:
    if kind == "valkey":
        return find_redis_server()
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("no redis-server on PATH")
    return Path(found)


class Chains:
    """Chains of one shape, with their holders. `branching`: all start with one system prompt."""

    def __init__(self, shape: str, replicas: tuple[int, int]) -> None:
        self._rng = random.Random(1)
        self._replicas = replicas
        self._shared = self._rng.randbytes(10 * KEY_BYTES) if shape == "branching" else b""
        self.length = 30 if shape == "branching" else CHAIN_BLOCKS

    def __iter__(self) -> Iterator[tuple[list[int], StoredRun, bytes]]:
        while True:
            own = self._rng.randbytes(self.length * KEY_BYTES - len(self._shared))
            start = len(self._shared) // KEY_BYTES
            head = (self._shared or own)[:KEY_BYTES]
            parent = self._shared[-KEY_BYTES:]
            holders = self._rng.sample(range(NUM_NODES), self._rng.randint(*self._replicas))
            run = StoredRun(start=start, head=head, parent=parent, keys=own)
            yield holders, run, self._shared + own


async def fill(store: RedisStore, chains: Chains, num_blocks: int) -> tuple[int, list[bytes]]:
    """Writes as a cache-index does; blocks in all, and some whole chains."""
    numbers = []
    for node in range(NUM_NODES):
        name = f"n{node}"
        await store.register(name, "1", ROOT)
        await store.hold_writers([name], "bench", LEASE_MS)
        number = await store.open_session(name, "1", "bench")
        assert number is not None
        numbers.append(number)
    waiting: dict[int, list[SegmentChange]] = {number: [] for number in numbers}
    num_fields = dict.fromkeys(numbers, 0)
    done = 0
    some: list[bytes] = []
    for holders, run, whole in chains:
        changes = list(changes_of_run(ROOT, run))
        for node in holders:
            number = numbers[node]
            waiting[number] += changes
            num_fields[number] += len(run.keys) // KEY_BYTES
            if num_fields[number] >= WRITE_FIELDS:
                await store.write(number, waiting[number])
                waiting[number], num_fields[number] = [], 0
        done += len(run.keys) // KEY_BYTES
        if len(some) < MATCHES:
            some.append(whole)
        if done >= num_blocks:
            break
    for node, number in enumerate(numbers):
        await store.write(number, waiting[number])
        assert await store.commit(f"n{node}", number, 1)
    return done, some


def stored_bytes(kind: str, masters: int, num_blocks: int, shape: str) -> dict[str, float]:
    """Bytes of Redis a block at two replicas, by INFO; seconds of a written replica."""

    async def run(url: str) -> dict[str, float]:
        store = RedisStore(url, is_cluster=masters > 1)
        await store.probe()
        before = await store.memory_bytes()
        started_s = time.perf_counter()
        done, _ = await fill(store, Chains(shape, (2, 2)), num_blocks)
        seconds = time.perf_counter() - started_s
        used = await store.memory_bytes() - before
        await store.close()
        return {"bytes": used / done, "replicas_per_s": 2 * done / seconds}

    with running(kind, masters) as url:
        return asyncio.run(run(url))


def load_all(kind: str, masters: int, num_blocks: int) -> dict[str, float]:
    """Blocks a second from Redis to a ready mirror, and what matches cost in it."""

    async def run(url: str) -> dict[str, float]:
        store = RedisStore(url, is_cluster=masters > 1)
        await store.probe()
        done, some = await fill(store, Chains("long", (1, 3)), num_blocks)
        mirror = Mirror()
        started_s = time.perf_counter()
        incomplete = await Loader(store, mirror, time.monotonic, LOG).load()
        seconds = time.perf_counter() - started_s
        await store.close()
        assert not incomplete, incomplete
        assert mirror.view.num_keys == done, (mirror.view.num_keys, done)
        return {
            "blocks_per_s": done / seconds,
            "bytes": mirror.view.num_bytes / done,
            **{f"{kind}_s": match_s(mirror, some, kind) for kind in ("full", "half", "miss")},
        }

    with running(kind, masters) as url:
        return asyncio.run(run(url))


def match_s(mirror: Mirror, chains: list[bytes], kind: str) -> float:
    rng = random.Random(2)
    kept = {"full": CHAIN_BLOCKS, "half": CHAIN_BLOCKS // 2, "miss": 0}[kind] * KEY_BYTES
    asked = [
        chain[:kept] + rng.randbytes(CHAIN_BLOCKS * KEY_BYTES - kept)
        for chain in rng.choices(chains, k=MATCHES)
    ]
    now_s = time.monotonic() - 1.0
    started_s = time.perf_counter()
    for chain in asked:
        mirror.match(ROOT, chain, now_s)
    return (time.perf_counter() - started_s) / MATCHES


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"version": "this tree"}, {"stored_bytes": stored_bytes, "load_all": load_all}
