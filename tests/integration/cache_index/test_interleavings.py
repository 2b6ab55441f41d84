"""Any order of events, losses, crashes and restarts, on real servers: when it is quiet, mirrors,
Redis and the nodes' inventories are equal, and so is every match to a plain model."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import redis

from services.cache_index.service import CacheIndexService
from shared.messages.index import ResidencyEvent
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from tests.support.fake_node import FakeNode
from tests.support.hosted import Hosted
from tests.support.index_bench import ROOT, Index
from tests.support.servers import TestServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
NUM_NODES, NUM_INDEXES, NUM_BLOCKS = 3, 2, 130


@pytest.fixture
async def index(own_nats: TestServer, own_redis: TestServer) -> AsyncIterator[Index]:
    bus = await Bus.connect(own_nats.url, name="test")
    yield Index(bus, own_nats, own_redis)
    await bus.close()


class Play:
    """Some nodes whose events are delayed, repeated, overtaken and lost; some cache-indexes."""

    def __init__(self, index: Index, rng: random.Random, stack: AsyncExitStack) -> None:
        self.index = index
        self.rng = rng
        self._stack = stack
        # Two of the chains start alike.
        shared = rng.randbytes(16 * 20)
        self.chains = [rng.randbytes(16 * NUM_BLOCKS) for _ in range(2)]
        self.chains += [shared + rng.randbytes(16 * (NUM_BLOCKS - 20)) for _ in range(2)]
        self.nodes = [FakeNode(index.bus, f"n{number}", ROOT) for number in range(NUM_NODES)]
        self.hosted: list[Hosted[CacheIndexService]] = []
        self.on_the_way: list[tuple[FakeNode, ResidencyEvent]] = []
        self.lives = 0

    async def begin(self) -> None:
        for _ in range(NUM_INDEXES):
            await self.start_index()
        for node in self.nodes:
            await self._stack.enter_async_context(node)

    async def start_index(self) -> None:
        hosted = self.index.host()
        await hosted.__aenter__()
        self.hosted.append(hosted)

    async def end(self) -> None:
        for hosted in self.hosted:
            await hosted.end()

    async def store(self) -> None:
        node, chain = self.rng.choice(self.nodes), self.rng.choice(self.chains)
        if any(chain[:16] == other[:16] and chain != other for other in node.depths):
            return  # the model counts depths by whole chains: one of the two that start alike
        start = node.depths.get(chain, 0)
        if start < NUM_BLOCKS:
            end = min(start + self.rng.randint(1, 60), NUM_BLOCKS)
            self.on_the_way.append((node, node.store_event(chain, start, end)))

    async def remove(self) -> None:
        node, chain = self.rng.choice(self.nodes), self.rng.choice(self.chains)
        if node.depths.get(chain):
            event = node.remove_event(chain, self.rng.randrange(node.depths[chain]))
            self.on_the_way.append((node, event))

    async def deliver(self) -> None:
        if self.on_the_way:
            one = self.rng.choice(self.on_the_way[:4])
            if self.rng.random() < 0.8:
                self.on_the_way.remove(one)
            await one[0].send(one[1])

    async def lose(self) -> None:
        if self.on_the_way:
            self.on_the_way.remove(self.rng.choice(self.on_the_way[:4]))

    async def restart_node(self) -> None:
        node = self.rng.choice(self.nodes)
        self.lives += 1
        node.incarnation, node.seq, node.depths = f"life-{self.lives}", 0, {}
        await node.register()

    async def crash_index(self) -> None:
        victim = self.hosted.pop(self.rng.randrange(len(self.hosted)))
        await victim.crash()
        await victim.service.store.close()
        await self.start_index()

    async def flush_redis(self) -> None:
        with redis.Redis.from_url(self.index.redis.url) as client:
            client.flushall()

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.1)

    async def settle(self) -> None:
        for node, event in self.on_the_way:
            await node.send(event)
        self.on_the_way.clear()
        await self.index.until_true(NUM_NODES, timeout_s=30)
        for hosted in self.hosted:
            mirror = hosted.service.mirror
            mirror.check_integrity()
            for chain in self.chains:
                found = {m.node: m.num_blocks for m in mirror.match(ROOT, chain, monotonic_s())}
                assert found == {n.name: self._depth(n, chain) for n in self.nodes
                                 if self._depth(n, chain)}  # fmt: skip

    @staticmethod
    def _depth(node: FakeNode, chain: bytes) -> int:
        alike = [
            min(depth, 20) if other != chain else depth
            for other, depth in node.depths.items()
            if other[:16] == chain[:16]
        ]
        return max(alike, default=0)


SEEDS = [pytest.param(seed, marks=[] if seed == 1 else [pytest.mark.slow]) for seed in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_the_index_settles_on_the_truth(index: Index, seed: int) -> None:
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        play = Play(index, rng, stack)
        await play.begin()
        steps = [play.store, play.remove, play.deliver, play.lose, play.pause]
        steps += [play.restart_node, play.crash_index, play.flush_redis]
        weights = [8, 3, 12, rng.choice([0, 1, 2]), 3, 0.5, 0.3, 0.2]
        for _ in range(3):
            for step in rng.choices(steps, weights, k=40):
                await step()
            await play.settle()
        await play.end()
