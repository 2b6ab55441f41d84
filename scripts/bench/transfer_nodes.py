"""Two real nodes with their index for a bench, and what a worker does with them."""

import asyncio
import os
import secrets
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from scripts.bench.fleet import ROOT
from scripts.bench.interleave import VariantError
from scripts.embedded.nats_server import NatsServer
from scripts.embedded.redis_server import RedisServer
from scripts.launcher.processes import Child, ProcessSpec
from shared.kv.block_keys import chain_keys
from shared.messages import subjects
from shared.messages.common import FetchSource, NodeRef, RequestRef
from shared.messages.index import MatchReply, MatchRequest
from shared.messages.pool import SealBlock
from shared.messages.transfer import KvGeometry
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.transport.copying import RUN, Copier, Stop, load_copier
from shared.worker.pool_client import PoolClient

ROOT_KEY = bytes(range(16))
BLOCK_TOKENS = 16
START_S, END_S, STEP_S = 20.0, 5.0, 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """Where pools, logs and built code go."""

    folder: Path
    cache_dir: Path


class Nodes:
    """Two nodes with their index, and a worker attached to each."""

    def __init__(
        self,
        bus: Bus,
        a: PoolClient,
        b: PoolClient,
        copier: Copier,
        block_bytes: int,
        num_blocks: int,
        pids: list[int],
        shown: str,
    ) -> None:
        self._bus = bus
        self._a, self._b = a, b
        self._copier = copier
        self._block_bytes = block_bytes
        self._num_blocks = num_blocks
        self._pids = pids
        self._transport = shown
        self._source = np.full(num_blocks * block_bytes, 0x5A, dtype=np.uint8)
        self._seed = 0
        self._stop = Stop()

    async def put_get(self) -> tuple[float, float, float]:
        """Seconds of the put and of the get, and CPU seconds of nodes and worker."""
        chain = self._chain(self._num_blocks)
        cpu_s, start_s = self._cpu_s(), time.perf_counter()
        await self._put(chain)
        middle_s = time.perf_counter()
        await self._get(chain, self._num_blocks)
        end_s = time.perf_counter()
        cpu_s = self._cpu_s() - cpu_s
        await self._a.release("bench")
        await self._b.release("bench")
        return middle_s - start_s, end_s - middle_s, cpu_s

    async def small_us(self, count: int) -> float:
        """Lease and fetch of one block at a time; the first ones warm up."""
        chains = [self._chain(1) for _ in range(count)]
        for chain in chains:
            await self._put(chain)
        source = FetchSource(node=self._a.node, num_blocks=1)
        took_s = []
        for chain in chains:
            start_s = time.perf_counter()
            reply = await self._b.fetch("bench", _ref(), chain, source, 5_000)
            took_s.append(time.perf_counter() - start_s)
            if len(reply.blocks.slots) != 1 or reply.transport != self._transport:
                raise VariantError(f"a block came over {reply.transport}")
        return statistics.median(took_s[count // 5 :]) * 1e6

    async def _put(self, chain: bytes) -> None:
        count = len(chain) // 16
        given = await self._a.allocate("bench", count)
        pool = np.frombuffer(self._a.data, dtype=np.uint8).ctypes.data
        runs = np.zeros(count, dtype=RUN)
        runs["to"] = [pool + slot * self._block_bytes for slot in given.slots]
        runs["from"] = self._source.ctypes.data + np.arange(count) * self._block_bytes
        runs["bytes"] = self._block_bytes
        await asyncio.to_thread(self._copier.copy, runs, self._stop, with_digests=False)
        blocks = [
            SealBlock(
                slot=slot,
                generation=generation,
                valid_tokens=BLOCK_TOKENS,
                key=chain[16 * number : 16 * number + 16],
            )
            for number, (slot, generation) in enumerate(
                zip(given.slots, given.generations, strict=True)
            )
        ]
        await self._a.seal("bench", 0, chain, blocks)

    async def _get(self, chain: bytes, count: int) -> None:
        node = await self._match(chain, count)
        source = FetchSource(node=node, num_blocks=count)
        reply = await self._b.fetch("bench", _ref(), chain, source, 30_000)
        if len(reply.blocks.slots) != count or reply.transport != self._transport:
            raise VariantError(
                f"{len(reply.blocks.slots)} of {count} blocks came, over {reply.transport}"
            )

    async def _match(self, chain: bytes, count: int) -> NodeRef:
        """The index learns of a put within milliseconds; until then it is asked again."""
        deadline_s = time.perf_counter() + START_S
        while time.perf_counter() < deadline_s:
            request = MatchRequest(root=ROOT_KEY, chain=chain)
            try:
                reply = await self._bus.request(
                    subjects.INDEX_MATCH, request, MatchReply, timeout_s=1.0
                )
            except ServiceError:
                await asyncio.sleep(STEP_S)
                continue
            for match in reply.nodes:
                if match.node == self._a.node and match.num_blocks >= count:
                    return match.node
            await asyncio.sleep(0.001)
        raise VariantError("the index does not know the blocks")

    def _chain(self, count: int) -> bytes:
        self._seed += 1
        tokens = np.random.default_rng(self._seed).integers(0, 1 << 30, count * BLOCK_TOKENS)
        return chain_keys(ROOT_KEY, tokens.astype(np.int32), BLOCK_TOKENS)

    def _cpu_s(self) -> float:
        """Of the nodes and of this process, which is their worker."""
        return time.process_time() + sum(_cpu_s_of(pid) for pid in self._pids)


@asynccontextmanager
async def start_nodes(
    place: Place, transport: str, block_bytes: int, num_blocks: int
) -> AsyncIterator[Nodes]:
    """NATS, Redis, cache-index and two transfers, for this long."""
    async with AsyncExitStack() as stack:
        folder = place.folder / f"{transport}-{block_bytes}"
        shared = folder / "shared"
        await asyncio.to_thread(lambda: shared.mkdir(parents=True))
        nats, redis = NatsServer(folder / "nats"), RedisServer(folder / "redis")
        stack.callback(nats.close)
        stack.callback(redis.close)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for server in (nats, redis):
            await _start(stack, group, server.spec, folder)
            await server.wait_ready()
        base = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MOONPOOL_NATS_URL": nats.url,
            "MOONPOOL_REDIS_URL": redis.url,
            "MOONPOOL_SHARED_DIR": str(shared),
            "MOONPOOL_TRANSPORTS": transport,
            "MOONPOOL_CACHE_DIR": str(place.cache_dir),
            "MOONPOOL_LOG_LEVEL": "WARNING",
            "MOONPOOL_POOL_BYTES": str(2 * num_blocks * block_bytes),
        }
        names = [f"bench-{side}-{secrets.token_hex(3)}" for side in "ab"]
        services = [("cache_index", f"bench-index-{secrets.token_hex(3)}")]
        services += [("transfer", name) for name in names]
        pids = []
        for service, name in services:
            argv = (sys.executable, "-P", "-m", f"services.{service}")
            spec = ProcessSpec(name, argv, {**base, "MOONPOOL_INSTANCE_ID": name}, is_quiet=True)
            child = await _start(stack, group, spec, folder)
            if service == "transfer":
                pids.append(child.pid)
        bus = await Bus.connect(nats.url, name="bench")
        stack.push_async_callback(bus.close)
        copier = await asyncio.to_thread(load_copier, place.cache_dir)
        clients = []
        for name in names:
            client = await PoolClient.attach(
                shared,
                node=name,
                instance=f"w-{name}",
                incarnation="1",
                role="prefill",
                root=ROOT_KEY,
                geometry=KvGeometry(
                    num_layers=1,
                    block_tokens=BLOCK_TOKENS,
                    token_bytes=block_bytes // (2 * BLOCK_TOKENS),
                ),
                max_slots=2 * num_blocks,
                timeout_s=START_S,
            )
            stack.callback(client.close)
            clients.append(client)
        yield Nodes(bus, clients[0], clients[1], copier, block_bytes, num_blocks, pids, transport)


async def _start(
    stack: AsyncExitStack, group: asyncio.TaskGroup, spec: ProcessSpec, folder: Path
) -> Child:
    child = await Child.start(spec, log=folder / f"{spec.name}.log", on_line=lambda *_: None)
    waiting = group.create_task(child.wait(), name=f"output of {spec.name}")

    async def end() -> None:
        child.send_signal(15)
        done, _ = await asyncio.wait([waiting], timeout=END_S)
        if not done:
            child.kill_group()
            await waiting

    stack.push_async_callback(end)
    return child


def _cpu_s_of(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _ref() -> RequestRef:
    return RequestRef(request_id="bench", gateway="bench", gateway_incarnation="1")
