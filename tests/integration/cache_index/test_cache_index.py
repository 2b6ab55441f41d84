"""cache-index on real NATS and Redis: restart, loss of Redis, gaps, incarnations, two of them."""

from collections.abc import AsyncIterator

import pytest
import redis

from services.cache_index.mirror import Mirror
from services.cache_index.redis_store import RedisStore
from shared.messages import subjects
from shared.messages.common import ErrorCode, InstanceRef, RequestRef
from shared.messages.index import (
    Expected,
    HotReply,
    HotRequest,
    MatchReply,
    MatchRequest,
)
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.fake_node import FakeNode
from tests.support.index_bench import ROOT, Index, changes_of, new_chain
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def index(own_nats: TestServer, own_redis: TestServer) -> AsyncIterator[Index]:
    bus = await Bus.connect(own_nats.url, name="test")
    yield Index(bus, own_nats, own_redis)
    await bus.close()


async def test_events_show_in_matches_and_in_redis(index: Index) -> None:
    chain = new_chain(150)
    async with index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 100), node.store_event(chain, 100, 150))
        await index.until_match(chain, {"n1": 150})
        await node.send(node.remove_event(chain, 70))
        await index.until_match(chain, {"n1": 70})
        await index.until_in_redis(chain, {"n1": 70})
        assert await index.match(new_chain(4)) == {}
        assert (await index.stats()).num_blocks == 70


async def test_a_restarted_index_answers_from_redis_alone(index: Index) -> None:
    chain = new_chain(130)
    async with index.host() as first, FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 130))
        await index.until_in_redis(chain, {"n1": 130})
        await node.refuse_inventories()
        await first.crash()
        await first.service.store.close()
        async with index.host():
            assert await index.match(chain) == {"n1": 130}
            await node.send(node.remove_event(chain, 20))
            await index.until_match(chain, {"n1": 20})


async def test_two_indexes_give_the_same_answers(index: Index) -> None:
    chains = [new_chain(length) for length in (1, 64, 65, 200)]
    async with (
        index.host() as one,
        index.host() as two,
        FakeNode(index.bus, "n1", ROOT) as node,
        FakeNode(index.bus, "n2", ROOT) as other,
    ):
        for chain in chains:
            length = len(chain) // 16
            await node.send(node.store_event(chain, 0, length))
            await other.send(other.store_event(chain, 0, length // 2 + 1))
        mirrors = [hosted.service.mirror for hosted in (one, two)]

        def answers(mirror: Mirror) -> list[dict[str, int]]:
            return [
                {m.node: m.num_blocks for m in mirror.match(ROOT, chain, monotonic_s())}
                for chain in chains
            ]

        expected = [{"n1": len(chain) // 16, "n2": len(chain) // 32 + 1} for chain in chains]
        for mirror in mirrors:
            await until(lambda mirror=mirror: answers(mirror) == expected, what="equal answers")
            mirror.check_integrity()
        await index.until_in_redis(chains[3], expected[3])


async def test_lost_repeated_and_reordered_events_end_in_the_truth(index: Index) -> None:
    chain = new_chain(60)
    async with index.host() as hosted, FakeNode(index.bus, "n1", ROOT) as node:
        events = [node.store_event(chain, at, at + 10) for at in range(0, 50, 10)]
        first, second, third, _lost, fifth = events
        await node.send(third, first, first, second)
        await index.until_match(chain, {"n1": 30})
        assert hosted.service.resyncer.resyncs_total <= 1  # the writer's own
        await node.send(fifth, fifth)
        await index.until_match(chain, {"n1": 50})
        await index.until_in_redis(chain, {"n1": 50})
        assert hosted.service.mirror.gaps_total >= 1
        node.store_event(chain, 50, 60)  # the last event of all is lost: a renewal tells
        await index.until_match(chain, {"n1": 60})
        await index.until_in_redis(chain, {"n1": 60})
        hosted.service.mirror.check_integrity()


async def test_a_node_back_under_its_name_inherits_nothing_and_its_old_life_is_void(
    index: Index,
) -> None:
    chain = new_chain(70)
    async with index.host() as hosted, FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 50))
        await index.until_in_redis(chain, {"n1": 50})
        late = node.store_event(chain, 50, 70)
        old_incarnation = node.incarnation
        node.incarnation, node.seq, node.depths = "anew", 0, {}
        await node.register()
        assert await index.match(chain) == {}
        await node.send(late)
        await node.send(node.store_event(chain, 0, 3))
        await index.until_match(chain, {"n1": 3})
        await index.until_in_redis(chain, {"n1": 3})
        assert hosted.service.mirror.late_events_total == 1
        node.incarnation, current = old_incarnation, node.incarnation
        assert not (await node.renew()).is_current
        assert not (await node.register()).is_current
        node.incarnation = current
        await hosted.service.collector.sweep_mirror()
        assert hosted.service.mirror.view.num_keys == 3
        await hosted.service.collector.collect_if_due()
        with redis.Redis.from_url(index.redis.url) as client:
            fields = [client.hlen(key) for key in client.scan_iter("mp:{????????:*}")]
        assert sum(fields) == 3


async def test_a_node_whose_lease_ended_is_not_returned(index: Index) -> None:
    chain = new_chain(5)
    node = FakeNode(index.bus, "n1", ROOT, lease_ms=500)
    async with index.host(), node:
        await node.send(node.store_event(chain, 0, 5))
        await index.until_match(chain, {"n1": 5})
        node.fall_silent()
        await index.until_match(chain, {})
        await node.renew()
        assert await index.match(chain) == {"n1": 5}


async def test_another_index_takes_over_the_writing_and_a_late_writer_writes_to_nobody(
    index: Index,
) -> None:
    chain = new_chain(40)
    async with index.host() as first, FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 10))
        await index.until_in_redis(chain, {"n1": 10})
        store = RedisStore(index.redis.url)
        await store.probe()
        record = await store.node("n1")
        assert record is not None
        async with index.host() as second:
            await first.end()  # gives its leases back
            await node.send(node.store_event(chain, 10, 20))
            await index.until_in_redis(chain, {"n1": 20})
            assert second.service.writer.writes("n1")
            late = node.store_event(chain, 20, 40)
            await store.write(record.number, changes_of(late))
            assert not await store.commit("n1", record.number, 99)
            assert await index.in_redis(chain) == {"n1": 20}
        await store.close()


async def test_a_chain_cut_within_a_key_names_the_field(index: Index) -> None:
    async with index.host():
        with pytest.raises(ServiceError) as caught:
            await index.match(b"abc")
        assert (caught.value.code, caught.value.field) == (ErrorCode.BAD_REQUEST, "chain")


def expected(chain: bytes, done_blocks: int = 0, *, is_over: bool = False) -> Expected:
    return Expected(
        ref=RequestRef(request_id="r", gateway="g", gateway_incarnation="g"),
        instance=InstanceRef(id="p1", incarnation="i", node="n1"),
        root=ROOT, chain=chain, done_blocks=done_blocks, eta_ms=4_000, ttl_ms=6_000,
        is_over=is_over,
    )  # fmt: skip


async def test_what_is_being_computed_is_told_apart_from_what_is_there(index: Index) -> None:
    chain = new_chain(20)
    async with index.host(), index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 4))
        await index.until_match(chain, {"n1": 4})

        async def tell(message: Expected, depths: set[int]) -> None:
            await index.bus.publish(subjects.INDEX_EXPECTED, message)

            async def is_so() -> bool:
                asked = MatchRequest(root=ROOT, chain=chain)
                replies = [
                    await index.bus.request(subjects.INDEX_MATCH, asked, MatchReply, timeout_s=2)
                    for _ in range(6)  # of either cache-index
                ]
                assert all([one.num_blocks for one in reply.nodes] == [4] for reply in replies)
                return all(
                    {one.num_blocks for one in reply.expected} == depths for reply in replies
                )

            await until(is_so, what=f"{depths} expected")

        await tell(expected(chain[: 16 * 12], 4), {12})
        await tell(expected(chain[: 16 * 12], 12), set())
        await tell(expected(chain[: 16 * 15], 4), {15})
        await tell(expected(b"", is_over=True), set())
        await tell(expected(chain[: 16 * 9], 4), {9})
        node.incarnation, node.seq, node.depths = "anew", 0, {}
        await node.register()  # with its pool went what was to come
        await node.send(node.store_event(chain, 0, 4))
        for _ in range(4):
            await index.until_match(chain, {"n1": 4})
        await tell(expected(new_chain(3)), set())


async def test_uses_of_all_cache_indexes_add_up(index: Index) -> None:
    chain = new_chain(8)
    async with (
        index.host() as one,
        index.host() as two,
        FakeNode(index.bus, "n1", ROOT) as node,
    ):
        await node.send(node.store_event(chain, 0, 8))
        for hosted in (one, two):
            mirror = hosted.service.mirror
            await until(lambda mirror=mirror: mirror.match(ROOT, chain, monotonic_s()))
        for _ in range(40):
            await index.match(chain)

        def rates() -> list[float]:
            return [
                round(hot.uses_per_s * 60, 0)
                for hosted in (one, two)
                if hosted.service.handlers is not None
                for hot in hosted.service.handlers.hot.top(1, monotonic_s())
            ]

        await until(lambda: len(rates()) == 2 and abs(rates()[0] - rates()[1]) <= 2)
        reply = await index.bus.request(
            subjects.INDEX_HOT, HotRequest(limit=5), HotReply, timeout_s=2
        )
        (hot,) = reply.prefixes
        assert (hot.num_blocks, hot.key, hot.nodes) == (8, chain[-16:], ["n1"])


async def test_a_mirror_at_its_budget_answers_less_and_asks_nobody_for_what_it_let_go(
    index: Index,
) -> None:
    index.settings = index.settings.model_copy(update={"index_memory_bytes": 1 << 20})
    async with index.host() as hosted, FakeNode(index.bus, "n1", ROOT) as node:
        await until(lambda: hosted.service.resyncer.resyncs_total > 0, what="the writer's own")
        chains = [new_chain(500) for _ in range(60)]
        for chain in chains:
            await node.send(node.store_event(chain, 0, 250))
        for chain in chains:
            await node.send(node.store_event(chain, 250, 500))
        mirror = hosted.service.mirror
        await until(lambda: mirror.nodes()[0][3] == node.seq, what="all events are applied")
        stats = await index.stats()
        assert stats.evicted_total > 0
        assert stats.horizon is not None
        assert stats.num_keys < 23_000
        assert stats.mirror_bytes <= 1 << 20
        assert hosted.service.resyncer.resyncs_total == 1
        assert mirror.gaps_total == 0
        depths = [(await index.match(chain))["n1"] for chain in chains]
        assert 0 < min(depths) <= max(depths) < 500
        mirror.check_integrity()


async def test_an_event_with_half_a_key_is_one_that_is_missing(index: Index) -> None:
    chain = new_chain(20)
    async with index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 10))
        # The inventory that begins the writing has been taken.
        await index.until_in_redis(chain, {"n1": 10})
        bad = node.store_event(chain, 10, 20)
        half = [bad.stored[0].model_copy(update={"keys": bad.stored[0].keys[:-5]})]
        await node.send(bad.model_copy(update={"stored": half}))
        await index.until_match(chain, {"n1": 20})
