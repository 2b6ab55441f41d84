"""A thousand sibling requests at once: they spread, whatever the number of conductors."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from services.cache_index.service import CacheIndexService
from services.cache_index.settings import CacheIndexSettings
from services.conductor import driver, handlers
from services.conductor.settings import ConductorSettings
from shared.kv.ids import KEY_BYTES
from shared.messages.prefill import Reserve, ReserveReply
from shared.runtime.bus import Bus
from tests.support.conducting import Conducting
from tests.support.deadline import until
from tests.support.fake_instance import ROOT, FakeInstance
from tests.support.fake_node import FakeNode
from tests.support.hosted import Hosted
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration
NUM_REQUESTS = 1_000
NUM_INSTANCES = 8
LIMIT = 200
"""Reservations that one instance gives out: well beyond what the spread may reach."""
TOKEN_S = 0.001
PROMPT_BLOCKS = 64
PREFIX_BLOCKS = 48


class Limited:
    """An instance that counts what it promised, says so, and refuses beyond its limit."""

    def __init__(self, fake: FakeInstance) -> None:
        self.fake = fake
        self.num_accepted = 0
        self.work_s = 0.0
        fake.answer = self.answer

    async def answer(self, asked: Reserve) -> ReserveReply:
        if self.num_accepted >= LIMIT:
            return ReserveReply(is_accepted=False, reason="full", retry_after_s=1.0)
        start_s = self.work_s
        self.num_accepted += 1
        self.work_s += (asked.num_tokens - asked.cached_tokens) * TOKEN_S
        changes = {"queued_requests": self.num_accepted, "expected_start_s": self.work_s}
        self.fake.report = self.fake.report.model_copy(update=changes)
        return ReserveReply(is_accepted=True, expected_start_s=start_s)


@pytest.fixture
async def cluster(
    own_nats: TestServer, own_redis: TestServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Conducting]:
    # One loop plays two dozen processes here: it is given the time that these would have.
    monkeypatch.setattr(driver, "RESERVE_TIMEOUT_S", 20.0)
    monkeypatch.setattr(handlers, "TURN_TIMEOUT_S", 20.0)
    bus = await Bus.connect(own_nats.url, name="test")
    index = CacheIndexSettings(nats_url=own_nats.url, redis_url=own_redis.url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Hosted("cache-index", CacheIndexService(index), index))
        yield Conducting(bus, ConductorSettings(nats_url=own_nats.url), stack)
    await bus.close()


async def burst(cluster: Conducting, num_conductors: int) -> dict[str, list[Limited]]:
    """The instances by role, after it."""
    for _ in range(num_conductors):
        await cluster.host()
    limited: dict[str, list[Limited]] = {"prefill": [], "decode": []}
    for number in range(NUM_INSTANCES):
        for role, instances in limited.items():
            fake = await cluster.add(
                role, f"{role[0]}{number}", f"n{number}", free_tokens=10**7, capacity_tokens=10**7
            )
            instances.append(Limited(fake))
    prefix = secrets.token_bytes(PREFIX_BLOCKS * KEY_BYTES)
    own_bytes = (PROMPT_BLOCKS - PREFIX_BLOCKS) * KEY_BYTES
    node = FakeNode(cluster.bus, "n0", ROOT)
    node.incarnation = "n0-1"
    async with node:
        await node.send(node.store_event(prefix, 0, PREFIX_BLOCKS))

        async def is_ready() -> bool:
            for fake in cluster.fakes:
                await fake.say()
            found = await cluster.placed(explain=True, prefill="p0", chain=prefix, num_tokens=1_024)
            heard = [await cluster.state() for _ in range(4 * num_conductors)]
            return found.local_blocks == PREFIX_BLOCKS and all(
                len(one.instances) == 2 * NUM_INSTANCES for one in heard
            )

        await until(is_ready, what="all conductors know all instances")
        async with asyncio.TaskGroup() as group:
            is_over = asyncio.Event()
            group.create_task(_say(cluster, is_over))
            replies = await asyncio.gather(
                *(
                    cluster.place(
                        timeout_s=30,
                        chain=prefix + secrets.token_bytes(own_bytes),
                        num_tokens=1_030,
                    )
                    for _ in range(NUM_REQUESTS)
                )
            )
            is_over.set()
    refusals = [reply.refusal for reply in replies if reply.placement is None]
    assert refusals == []
    return limited


async def _say(cluster: Conducting, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        await asyncio.sleep(0.5)
        for fake in cluster.fakes:
            await fake.say()


@pytest.mark.parametrize("num_conductors", [1, 2, 4])
async def test_a_thousand_siblings_at_once_spread_over_eight_instances(
    cluster: Conducting, num_conductors: int
) -> None:
    for role, instances in (await burst(cluster, num_conductors)).items():
        counts = [one.num_accepted for one in instances]
        assert sum(counts) >= NUM_REQUESTS
        assert max(counts) <= LIMIT
        # At most 1.25 where the machine is idle; on a busy one, what conductors tell each other
        # comes later. Four that told each other nothing reached 1.42.
        assert max(counts) <= 1.4 * NUM_REQUESTS / NUM_INSTANCES, (role, counts)
