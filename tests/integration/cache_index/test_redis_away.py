"""Redis under cache-index: flushed, stopped, slow, half written; and what only it decides."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import redis

from services.cache_index.redis_store import RedisStore
from shared.messages import subjects
from shared.messages.index import (
    ClaimFormat,
    ClaimReply,
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


async def test_flushing_redis_costs_no_match_and_redis_is_built_anew(index: Index) -> None:
    chain = new_chain(80)
    async with index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 80))
        await index.until_in_redis(chain, {"n1": 80})
        epoch = node.epoch
        with redis.Redis.from_url(index.redis.url) as client:
            client.flushall()
        await node.send(node.remove_event(chain, 40))
        while node.epoch == epoch:
            assert set(await index.match(chain)) == {"n1"}
            await asyncio.sleep(0.02)
        await index.until_in_redis(chain, {"n1": 40})
        assert await index.match(chain) == {"n1": 40}


async def test_matching_goes_on_while_redis_is_away_and_writes_are_caught_up(index: Index) -> None:
    chain = new_chain(80)
    async with index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 40))
        await index.until_in_redis(chain, {"n1": 40})
        index.redis.stop(signal.SIGKILL)
        await node.send(node.store_event(chain, 40, 80))
        await index.until_match(chain, {"n1": 80})
        await until(lambda: _is_redis_away(index), what="Redis seen away")
        assert await index.match(chain) == {"n1": 80}
        index.redis.start()
        await index.until_in_redis(chain, {"n1": 80})
        assert await index.match(chain) == {"n1": 80}


@contextmanager
def _stopped(server: TestServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def _is_redis_away(index: Index) -> bool:
    return not (await index.stats()).is_redis_up


async def test_a_redis_that_hangs_delays_no_match_and_a_registration_is_refused_in_time(
    index: Index,
) -> None:
    chain = new_chain(8)
    async with index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 8))
        await index.until_in_redis(chain, {"n1": 8})
        with _stopped(index.redis):
            started_s = monotonic_s()
            for _ in range(20):
                assert await index.match(chain) == {"n1": 8}
            assert monotonic_s() - started_s < 1.0
            with pytest.raises(ServiceError) as caught:
                await FakeNode(index.bus, "n2", ROOT).register()
            assert caught.value.is_retryable
        await node.send(node.remove_event(chain, 5))
        await index.until_in_redis(chain, {"n1": 5})


async def test_more_than_can_wait_for_redis_is_made_good_by_an_inventory(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cache_index.writer.MAX_PENDING_FIELDS", 10)
    chain = new_chain(60)
    async with index.host() as hosted, FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 5))
        await index.until_in_redis(chain, {"n1": 5})
        before = node.inventories
        with _stopped(index.redis):
            for start in range(5, 60, 5):
                await node.send(node.store_event(chain, start, start + 5))
            await index.until_match(chain, {"n1": 60})
            await until(lambda: "n1" not in hosted.service.writer.sessions)
        await index.until_in_redis(chain, {"n1": 60})
        assert node.inventories > before


async def test_a_node_that_was_retired_while_it_lives_comes_back_to_redis(index: Index) -> None:
    """A cache-index that was cut off from the bus for long takes every node for gone."""
    chain, next_chain = new_chain(10), new_chain(1)
    store = RedisStore(index.redis.url)
    await store.probe()
    async with index.host(), index.host(), FakeNode(index.bus, "n1", ROOT) as node:
        await node.send(node.store_event(chain, 0, 10))
        await index.until_in_redis(chain, {"n1": 10})
        record = await store.node("n1")
        assert record is not None
        await store.retire("n1", node.incarnation, record.registration)
        assert await index.in_redis(chain) == {}
        await node.send(node.store_event(next_chain, 0, 1))
        await index.until_in_redis(chain, {"n1": 10})
        await index.until_in_redis(next_chain, {"n1": 1})
        assert node.registrations > 1
    await store.close()


async def test_a_session_is_not_loaded_before_it_is_whole(index: Index) -> None:
    chain = new_chain(10)
    store = RedisStore(index.redis.url)
    await store.probe()
    await store.register("n1", "a", ROOT)
    assert await store.hold_writers(["n1"], "w", 5_000) == {"n1"}
    assert await store.open_session("n1", "a", "other") is None
    assert await store.open_session("n1", "late", "w") is None
    event = FakeNode(index.bus, "n1", ROOT).store_event(chain, 0, 10)
    for _ in range(2):
        number = await store.open_session("n1", "a", "w")
        assert number is not None
        await store.write(number, changes_of(event))
        assert await index.in_redis(chain) == {}
        assert await store.commit("n1", number, 1)
        assert await index.in_redis(chain) == {"n1": 10}
    await store.close()


async def test_the_first_format_of_a_model_stands_and_another_one_is_told_what_differs(
    index: Index,
) -> None:
    async def claim(instance: str, **kv_format: object) -> ClaimReply:
        message = ClaimFormat(model="m", instance=instance, kv_format=kv_format)
        return await index.bus.request(
            subjects.INDEX_CLAIM_FORMAT, message, ClaimReply, timeout_s=2
        )

    async with index.host():
        replies = await asyncio.gather(
            *(claim(f"i{n}", dtype=dtype, grid=256) for n, dtype in enumerate(["a", "b"] * 4))
        )
        winners = {reply.current["dtype"] for reply in replies}
        assert len(winners) == 1
        assert [reply.is_accepted for reply in replies].count(True) == 4
        refused = next(reply for reply in replies if not reply.is_accepted)
        assert "dtype: " in refused.problem
        assert "grid" not in refused.problem
        assert "HDEL" in refused.problem


async def test_a_starting_index_waits_for_redis_and_says_so(
    index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    index.redis.stop()
    starting = asyncio.ensure_future(index.host().__aenter__())
    await until(lambda: "waiting for Redis at redis://127.0.0.1" in caplog.text)
    assert not starting.done()
    index.redis.start()
    hosted = await starting
    assert await index.match(new_chain(2)) == {}
    await hosted.end()


async def test_an_instance_of_the_known_format_may_restart_while_redis_is_away(
    index: Index,
) -> None:
    async def claim(dtype: str) -> ClaimReply:
        message = ClaimFormat(model="m", instance="i", kv_format={"dtype": dtype})
        return await index.bus.request(
            subjects.INDEX_CLAIM_FORMAT, message, ClaimReply, timeout_s=5
        )

    async with index.host():
        assert (await claim("a")).is_accepted
        with _stopped(index.redis):
            assert (await claim("a")).is_accepted
            with pytest.raises(ServiceError, match="Redis"):
                await claim("b")
