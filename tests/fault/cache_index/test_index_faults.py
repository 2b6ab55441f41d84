"""Real servers and processes that go, hang and come back: the index ends equal to the truth.

Equal means: Redis, every cache-index and the nodes' own inventories say the same of every node.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.index import IndexStats, MatchReply, MatchRequest
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from tests.support import fake_node
from tests.support.deadline import until
from tests.support.fake_node import FakeNode
from tests.support.index_bench import ROOT, Index, new_chain
from tests.support.processes import ServiceProcess
from tests.support.servers import TestServer

pytestmark = pytest.mark.fault
NUM_NODES = 3
Record = Callable[[str, object], None]


class Cluster:
    """Two cache-index processes and some nodes that hold chains."""

    def __init__(self, index: Index, folder: Path, record: Record) -> None:
        self.index = index
        self._folder = folder
        self._record = record
        self.nodes = [FakeNode(index.bus, f"n{number}", ROOT) for number in range(NUM_NODES)]
        self.chains = [new_chain(100) for _ in range(6)]

    def process(self, name: str) -> ServiceProcess:
        settings = self.index.settings
        return ServiceProcess(
            "cache_index",
            self._folder / f"{name}.log",
            nats_url=settings.nats_url,
            redis_url=settings.redis_url,
            instance_id=name,
        )

    async def grow(self) -> None:
        """Every node holds more of some chains, and less of one."""
        for number, node in enumerate(self.nodes):
            for chain in self.chains[number : number + 3]:
                start = node.depths.get(chain, 0)
                if start < 100:
                    await node.send(node.store_event(chain, start, start + 20))
            chain = self.chains[number]
            await node.send(node.remove_event(chain, node.depths[chain] - 5))

    async def settles(self, what: str, since_s: float, timeout_s: float = 30.0) -> None:
        await self.index.until_true(NUM_NODES, timeout_s=timeout_s)
        seconds = round(monotonic_s() - since_s, 2)
        self._record("index_equal_after_s", seconds)
        print(f"{what}: the index equals the truth after {seconds} s")

    async def matches(self) -> dict[str, int]:
        return await self.index.match(self.chains[2])


@pytest.fixture
async def cluster(
    own_nats: TestServer,
    own_redis: TestServer,
    tmp_path: Path,
    record_property: Record,
) -> AsyncIterator[Cluster]:
    bus = await Bus.connect(own_nats.url, name="test")
    one = Cluster(Index(bus, own_nats, own_redis), tmp_path, record_property)
    with one.process("index-a"), one.process("index-b"):
        await until(lambda: _answer(bus), timeout_s=20, what="both cache-indexes answer")
        for node in one.nodes:
            await node.__aenter__()
        await one.grow()
        await one.index.until_true(NUM_NODES)
        yield one
        for node in one.nodes:
            await node.__aexit__()
    await bus.close()


async def _answer(bus: Bus) -> bool:
    try:
        for name in ("index-a", "index-b"):
            await bus.request(subjects.cache_index(name, "stats"), Empty(), IndexStats, timeout_s=1)
    except ServiceError:
        return False
    return True


async def test_redis_is_flushed(cluster: Cluster) -> None:
    before = await cluster.matches()
    started_s = monotonic_s()
    with redis.Redis.from_url(cluster.index.redis.url) as client:
        client.flushall()
    assert await cluster.matches() == before
    await cluster.grow()
    await cluster.settles("FLUSHALL", started_s)


async def test_redis_restarts_without_persistence(cluster: Cluster) -> None:
    cluster.index.redis.stop(signal.SIGKILL)
    await cluster.grow()
    assert await cluster.matches()
    started_s = monotonic_s()
    cluster.index.redis.start()
    await cluster.settles("Redis restarted empty", started_s)


@contextmanager
def stopped(server: TestServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.slow
async def test_redis_hangs_for_ten_seconds(cluster: Cluster) -> None:
    slowest_s = 0.0
    with stopped(cluster.index.redis):
        until_s = monotonic_s() + 10.0
        while monotonic_s() < until_s:
            await cluster.grow()
            asked_s = monotonic_s()
            assert await cluster.matches()
            slowest_s = max(slowest_s, monotonic_s() - asked_s)
            await asyncio.sleep(0.2)
    started_s = monotonic_s()
    print(f"Redis stopped for 10 s: the slowest match took {slowest_s * 1e3:.1f} ms")
    assert slowest_s < 0.5
    await cluster.settles("Redis hung for 10 s", started_s)


async def test_nats_restarts(cluster: Cluster) -> None:
    cluster.index.nats.stop(signal.SIGKILL)
    # What is not sent is lost: only the sequence tells later.
    for node, chain in zip(cluster.nodes, cluster.chains, strict=False):
        node.store_event(chain, node.depths.get(chain, 0), 90)
    started_s = monotonic_s()
    cluster.index.nats.start()
    await cluster.settles("NATS restarted", started_s)
    await cluster.grow()
    await cluster.settles("NATS restarted, and went on", monotonic_s())


@pytest.mark.slow
async def test_a_cache_index_is_killed_in_the_middle_of_loading(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_node, "PAGE_PLACES", 500)
    node = cluster.nodes[0]
    for _ in range(400):
        chain = new_chain(500)
        await node.send(node.store_event(chain, 0, 500))
    await cluster.index.until_true(NUM_NODES, timeout_s=60)
    with redis.Redis.from_url(cluster.index.redis.url) as client:
        for turn in range(3):
            client.config_resetstat()
            with cluster.process(f"index-doomed-{turn}") as doomed:
                await until(lambda: "cmdstat_scan" in client.info("commandstats"), timeout_s=20)
                doomed.end(signal.SIGKILL)
            assert "loaded" not in doomed.log()
    await cluster.grow()
    started_s = monotonic_s()
    with cluster.process("index-late"):
        await cluster.settles("killed in mid-load, three times", started_s, timeout_s=60)
        asker_subject = subjects.cache_index("index-late", "stats")
        stats = await cluster.index.bus.request(asker_subject, Empty(), IndexStats, timeout_s=5)
        assert stats.num_keys > 200_000


async def test_a_node_restarts_under_its_name_with_an_old_event_on_the_way(
    cluster: Cluster,
) -> None:
    node, chain = cluster.nodes[0], new_chain(60)
    late = node.store_event(chain, 0, 60)
    old = dict(node.depths)
    started_s = monotonic_s()
    node.incarnation, node.seq, node.depths = f"{node.incarnation}-2", 0, {}
    await node.register()
    await node.send(late)
    for gone in old:
        found = await cluster.index.bus.request(
            subjects.INDEX_MATCH, MatchRequest(root=ROOT, chain=gone), MatchReply, timeout_s=2
        )
        assert node.name not in {match.node.id for match in found.nodes}
    await node.send(node.store_event(chain, 0, 7))
    await cluster.settles("a node came back under its name", started_s)
    assert (await cluster.index.match(chain))[node.name] == 7


async def test_a_node_that_dies_is_in_no_match_after_its_lease(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    chain = cluster.chains[0]
    assert node.name in await cluster.index.match(chain)
    node.fall_silent()
    started_s = monotonic_s()

    async def is_gone() -> bool:
        return node.name not in await cluster.index.match(chain)

    await until(is_gone, timeout_s=5, what="it is in no match")
    seconds = monotonic_s() - started_s
    print(f"a node that died: in no match after {seconds:.2f} s")
    assert seconds < 3.5
