"""The same index on Valkey, Redis and Cluster: layout, sizes, collecting, budgets."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest

from services.cache_index import redis_connection
from services.cache_index.collector import Collector
from services.cache_index.loader import Loader
from services.cache_index.mirror import Mirror
from services.cache_index.pending import PendingChanges
from services.cache_index.redis_connection import MAX_CALLS, StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import changes_of_run, replicas_in
from shared.kv.ids import SEGMENT_BLOCKS
from shared.messages.index import RemovedRun, ResidencyEvent, StoredRun
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from tests.support.fake_node import FakeNode
from tests.support.index_bench import LOG, ROOT, Index, new_chain
from tests.support.servers import TestServer, redis_servers

pytestmark = pytest.mark.integration
STORM = 300
KINDS = [("valkey", 1), ("valkey", 3), ("redis", 1), ("redis", 3)]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}", scope="module")
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TestServer, bool]]:
    name, num_masters = request.param
    with redis_servers(tmp_path_factory.mktemp("redis"), name, num_masters) as server:
        yield server, num_masters > 1


@pytest.fixture
async def store(kind: tuple[TestServer, bool]) -> AsyncIterator[RedisStore]:
    """Of an empty index."""
    server, is_cluster = kind
    store = RedisStore(server.url, is_cluster=is_cluster)
    store.connection.is_up = True
    flushing: Any = store.connection._client
    await flushing.flushall()
    await store.probe()
    yield store
    await store.close()


async def session(store: RedisStore, node: str) -> int:
    assert await store.register(node, "1", ROOT) is not None
    assert await store.hold_writers([node], "w", 60_000) == {node}
    number = await store.open_session(node, "1", "w")
    assert number is not None
    return number


async def loaded(store: RedisStore) -> Mirror:
    mirror = Mirror()
    assert await Loader(store, mirror, monotonic_s, LOG).load() == []
    mirror.check_integrity()
    return mirror


def run_of(chain: bytes, start: int = 0, **changes: Any) -> StoredRun:
    head = chain[: 16 * (start % SEGMENT_BLOCKS or 1)][:16]
    return StoredRun(start=start, head=head, parent=b"", keys=chain[16 * start :], **changes)


async def test_a_storm_of_calls_takes_turns_over_few_connections(
    store: RedisStore,
) -> None:
    """Of all nodes at once after an outage: more than a client of Redis has connections for."""
    before = psutil.Process().num_fds()
    names = [f"node-{number}" for number in range(STORM)]
    numbers = await asyncio.gather(*(store.register(name, "1", ROOT) for name in names))
    assert len(set(numbers)) == STORM
    assert store.is_up
    assert psutil.Process().num_fds() <= before + MAX_CALLS


async def test_a_turn_that_does_not_come_is_taken_for_redis_being_away(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "TURN_TIMEOUT_S", 0.1)
    may_end = asyncio.Event()
    guard: Any = store.connection._guard
    slow = [asyncio.ensure_future(guard(may_end.wait)) for _ in range(MAX_CALLS)]
    await asyncio.sleep(0)
    with pytest.raises(StoreAway, match="TimeoutError"):
        await store.register("late", "1", ROOT)
    assert not store.is_up
    may_end.set()
    assert await asyncio.gather(*slow) == [True] * MAX_CALLS
    store.connection.is_up = True
    assert await store.register("later", "1", ROOT) is not None, "all turns are given back"


async def test_a_cache_index_works_on_it_from_event_to_restart(
    kind: tuple[TestServer, bool], store: RedisStore, own_nats: TestServer
) -> None:
    bus = await Bus.connect(own_nats.url, name="test")
    index = Index(bus, own_nats, kind[0], is_cluster=kind[1])
    chain = new_chain(300)
    async with index.host() as first, FakeNode(bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 200), node.store_event(chain, 200, 300))
        await index.until_in_redis(chain, {"n1": 300})
        await node.send(node.remove_event(chain, 130))
        await index.until_in_redis(chain, {"n1": 130})
        await index.until_true(1)
        await node.refuse_inventories()
        await first.crash()
        await first.service.store.close()
        async with index.host():
            assert await index.match(chain) == {"n1": 130}
    await bus.close()


async def test_many_chains_that_branch_in_one_segment_stay_small_and_none_is_lost(
    store: RedisStore,
) -> None:
    rng = random.Random(4)
    number, other = await session(store, "n1"), await session(store, "n2")
    system = rng.randbytes(160)
    tails = [rng.randbytes(16 * 20) for _ in range(150)]
    for tail in tails:
        run = StoredRun(start=10, head=system[:16], parent=system[-16:], keys=tail)
        for one in (number, other):
            await store.write(one, changes_of_run(ROOT, run))
    hashes = [one async for page in store.segments() for one in page]
    sizes = [len(fields) for _, fields in hashes]
    used = sum([await store.connection.call("MEMORY", "USAGE", key) for key, _ in hashes])
    assert sum(sizes) == 3_000
    assert max(sizes) <= 128  # what Redis keeps compact
    assert used / 3_000 < 48
    for tail in tails[:100]:
        removed = RemovedRun(heads=system[:16] * 20, keys=tail)
        pending = PendingChanges()
        pending.add(ResidencyEvent(
            node="n1", incarnation="1", root=ROOT, seq=1, removed=[removed]
        ))  # fmt: skip
        for one in (number, other):
            pending_of_one = pending.take(1_000)
            await store.write(one, pending_of_one)
            pending.put_back(pending_of_one)
    found = [replicas_in(page) async for page in store.segments()]
    assert sum(len(one) for one in found) == 2 * 50 * 20
    left = b"".join(one.prints.tobytes() for one in found)
    assert {left[at : at + 8] for at in range(0, len(left), 8)} == {
        tail[at : at + 8] for tail in tails[100:] for at in range(0, len(tail), 16)
    }


async def test_writing_the_same_again_changes_nothing_and_another_tier_replaces(
    store: RedisStore,
) -> None:
    number, chain = await session(store, "n1"), new_chain(70)
    for tier in ("dram", "dram", "disk"):
        run = run_of(chain, tier=tier)
        await store.write(number, changes_of_run(ROOT, run))
    assert await store.commit("n1", number, 1)
    (found,) = (await loaded(store)).match(ROOT, chain, monotonic_s())
    assert (found.num_blocks, found.dram_blocks) == (70, 0)
    assert sum([len(replicas_in(page)) async for page in store.segments()]) == 70


async def test_void_numbers_are_taken_out_and_live_ones_stay(store: RedisStore) -> None:
    chain = new_chain(200)
    for _ in range(3):
        number = await session(store, "n1")
        await store.write(number, changes_of_run(ROOT, run_of(chain)))
    other = await session(store, "n2")
    await store.write(other, changes_of_run(ROOT, run_of(chain[: 16 * 90])))
    collector = Collector(store, Mirror(), monotonic_s, LOG)
    assert await collector.collect_if_due()
    found = [replicas_in(page) async for page in store.segments()]
    assert sum(len(one) for one in found) == 290
    assert {int(n) for one in found for n in one.numbers} == {number, other}
    assert not await collector.collect_if_due()


async def test_over_its_budget_redis_lets_the_deepest_blocks_go_and_a_start_asks_the_nodes(
    store: RedisStore,
) -> None:
    number = await session(store, "n1")
    for _ in range(20):
        await store.write(number, changes_of_run(ROOT, run_of(new_chain(300))))
    long_chain, short_chain = new_chain(300), new_chain(10)
    for chain in (long_chain, short_chain):
        await store.write(number, changes_of_run(ROOT, run_of(chain)))
    assert await store.commit("n1", number, 1)
    used = await store.memory_bytes()
    collector = Collector(store, Mirror(), monotonic_s, LOG, redis_budget_bytes=used // 2)
    await collector.keep_budget()
    assert store.horizon < 128
    assert collector.evicted_total > 2_000
    mirror = Mirror()
    assert await Loader(store, mirror, monotonic_s, LOG).load() == ["n1"]
    (found,) = mirror.match(ROOT, short_chain, monotonic_s())
    assert found.num_blocks == 10
    (found,) = mirror.match(ROOT, long_chain, monotonic_s())
    assert 0 < found.num_blocks < 200
    await store.write(number, changes_of_run(ROOT, run_of(new_chain(300))))
    await store.set_horizon(128)
    assert (await store.probe(), store.horizon) == (store.epoch, 128)
