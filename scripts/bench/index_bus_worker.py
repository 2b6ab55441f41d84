"""Measures a cache-index process through NATS, in a process of its own, beside a bare responder."""

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from scripts.embedded.nats_server import NatsServer
from scripts.embedded.redis_server import RedisServer
from scripts.launcher.processes import PR_SET_PDEATHSIG
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.envelope import decode, encode
from shared.messages.index import (
    IndexStats,
    MatchReply,
    MatchRequest,
    NodeLeaseReply,
    RegisterNode,
    ResidencyEvent,
    StoredRun,
)
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

ROOT = b"r" * KEY_BYTES
NUM_NODES = 64
CHAIN_BLOCKS = 500
LEASE_MS = 3_600_000
READY_TIMEOUT_S = 30.0
_libc = ctypes.CDLL(None)


@contextmanager
def running(
    argv: tuple[str, ...] | list[str], env: Mapping[str, str] | None = None
) -> Iterator[None]:
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


class OnBus:
    """Owns the servers, the cache-index and the bare responder, and one client of them."""

    def __init__(self, num_blocks: int) -> None:
        self._stack = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="moonpool-bench-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        nats, redis = NatsServer(folder / "nats"), RedisServer(folder / "redis")
        for server in (nats, redis):
            self._stack.callback(server.close)
            self._stack.enter_context(running(server.spec.argv))
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._wait(nats, redis))
        env = os.environ | {"MOONPOOL_NATS_URL": nats.url, "MOONPOOL_REDIS_URL": redis.url}
        for module in ("services.cache_index", "scripts.bench.bare_responder"):
            self._stack.enter_context(running([sys.executable, "-P", "-m", module], env))
        rng = random.Random(1)
        length = CHAIN_BLOCKS * KEY_BYTES
        self._chains = [rng.randbytes(length) for _ in range(num_blocks // CHAIN_BLOCKS)]
        self._rng = rng
        self._seqs = [0] * NUM_NODES
        self._bus = self._runner.run(self._fill(nats.url))

    async def _wait(self, nats: NatsServer, redis: RedisServer) -> None:
        await nats.wait_ready()
        await redis.wait_ready()

    async def _fill(self, url: str) -> Bus:
        bus = await Bus.connect(url, name="bench")
        for node in range(NUM_NODES):
            asked = RegisterNode(node=f"n{node}", incarnation="1", root=ROOT, lease_ms=LEASE_MS)
            await _until(lambda asked=asked: bus.request(  # type: ignore[misc]
                subjects.INDEX_REGISTER_NODE, asked, NodeLeaseReply, timeout_s=2
            ))  # fmt: skip
        total = 0
        for number, chain in enumerate(self._chains):
            for node in self._rng.sample(range(NUM_NODES), self._rng.randint(1, 3)):
                await bus.publish(subjects.index_events(f"n{node}"), self._stored(node, chain))
                total += CHAIN_BLOCKS
            if number % 100 == 99:
                await self._until_has(bus, total)  # no faster than it can take them
        await self._until_has(bus, total)
        await _until(lambda: bus.client.request(subjects.BENCH_BARE, b"", timeout=1))
        return bus

    async def _until_has(self, bus: Bus, num_blocks: int) -> None:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            stats = await bus.request(subjects.INDEX_STATS, Empty(), IndexStats, timeout_s=5)
            if stats.num_blocks >= num_blocks:
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"the cache-index has {stats.num_blocks} of {num_blocks} replicas")

    def _stored(self, node: int, chain: bytes) -> ResidencyEvent:
        self._seqs[node] += 1
        run = StoredRun(start=0, head=chain[:KEY_BYTES], parent=b"", keys=chain)
        return ResidencyEvent(
            node=f"n{node}", incarnation="1", root=ROOT, seq=self._seqs[node], stored=[run]
        )

    def _question(self) -> bytes:
        return encode(MatchRequest(root=ROOT, chain=self._rng.choice(self._chains)))

    def latency(self, subject: str, count: int) -> float:
        """The median of one question at a time, in seconds."""

        async def run() -> float:
            taken = []
            for _ in range(count):
                question = self._question()
                started_s = time.perf_counter()
                await self._bus.client.request(subject, question, timeout=5)
                taken.append(time.perf_counter() - started_s)
            return sorted(taken)[count // 2]

        return self._runner.run(run())

    def rate(self, subject: str, count: int, in_flight: int) -> float:
        """Answers a second."""
        questions = [self._question() for _ in range(64)]

        async def ask(number: int) -> None:
            for turn in range(count // in_flight):
                question = questions[(number + turn) % len(questions)]
                answer = await self._bus.client.request(subject, question, timeout=10)
                if answer.headers or (
                    subject == subjects.INDEX_MATCH
                    and turn == 0
                    and not decode(answer.data, MatchReply).nodes
                ):
                    raise ValueError(f"{subject}: not the answer that was asked for")

        async def run() -> float:
            started_s = time.perf_counter()
            await asyncio.gather(*(ask(number) for number in range(in_flight)))
            return count // in_flight * in_flight / (time.perf_counter() - started_s)

        return self._runner.run(run())

    def staleness(self, count: int) -> list[float]:
        """From handing an event to the bus until a match has it, seconds: each of `count`."""

        async def run() -> list[float]:
            taken = []
            for _ in range(count):
                chain = self._rng.randbytes(64 * KEY_BYTES)
                question = MatchRequest(root=ROOT, chain=chain)
                started_s = time.perf_counter()
                await self._bus.publish(subjects.index_events("n0"), self._stored(0, chain))
                while not (
                    await self._bus.request(subjects.INDEX_MATCH, question, MatchReply, timeout_s=5)
                ).nodes:
                    continue
                taken.append(time.perf_counter() - started_s)
            return taken

        return self._runner.run(run())

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._runner.run(self._bus.close())
        self._runner.close()
        self._stack.close()


async def _until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return await ask()
        except (ServiceError, TimeoutError, OSError):
            if time.monotonic() > deadline_s:
                raise
        except Exception as error:
            if time.monotonic() > deadline_s:
                raise TimeoutError("nobody answers") from error
        await asyncio.sleep(0.05)


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    on_bus = OnBus(**settings)
    return {"version": "this tree"}, {
        "latency": on_bus.latency,
        "rate": on_bus.rate,
        "staleness": on_bus.staleness,
    }
