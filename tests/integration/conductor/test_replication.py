"""Hot prefixes are copied ahead by the one conductor that leads, on a real NATS and Redis."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from services.cache_index.service import CacheIndexService
from services.cache_index.settings import CacheIndexSettings
from services.conductor.service import ConductorService
from services.conductor.settings import ConductorSettings
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.index import CopiesReply, CopiesRequest, Lead, LeadReply
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from tests.support.conducting import Conducting
from tests.support.deadline import until
from tests.support.fake_instance import ROOT
from tests.support.fake_node import FakeNode
from tests.support.hosted import Hosted
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration
NAMES = ("n1", "n2", "n3")
NUM_BLOCKS = 60


class Replicated:
    """Three nodes with a prefill instance each; n1 has the prefix."""

    def __init__(self, cluster: Conducting, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._stack = stack
        self.prefix = secrets.token_bytes(NUM_BLOCKS * KEY_BYTES)
        self.nodes: dict[str, FakeNode] = {}
        self.conductors: list[Hosted[ConductorService]] = []

    async def start(self, num_conductors: int) -> None:
        for _ in range(num_conductors):
            self.conductors.append(await self.cluster.host())
        for name in NAMES:
            node = FakeNode(self.cluster.bus, name, ROOT)
            node.incarnation = f"{name}-1"
            self.nodes[name] = await self._stack.enter_async_context(node)
            await self.cluster.add("prefill", f"p{name}", name)
            await self.cluster.add("decode", f"d{name}", name)
        first = self.nodes["n1"]
        await first.send(first.store_event(self.prefix, 0, NUM_BLOCKS))

    async def miss(self, num_times: int, prefill: str = "pn2") -> None:
        for node in self.nodes.values():
            await node.report()
        for fake in self.cluster.fakes:
            await fake.say()
        for _ in range(num_times):
            chain = self.prefix + secrets.token_bytes(2 * KEY_BYTES)
            await self.cluster.placed(chain=chain, prefill=prefill)

    def holders(self) -> set[str]:
        return {name for name, node in self.nodes.items() if self.prefix in node.depths}

    def states(self) -> list[tuple[bool, int]]:
        """(leads, copies made) of every conductor."""
        found = []
        for hosted in self.conductors:
            replicating = hosted.service.replicating
            assert replicating is not None
            state = replicating.state()
            found.append((state.is_leader, state.copies_total))
        return found


@pytest.fixture
async def replicated(own_nats: TestServer, own_redis: TestServer) -> AsyncIterator[Replicated]:
    bus = await Bus.connect(own_nats.url, name="test")
    index = CacheIndexSettings(nats_url=own_nats.url, redis_url=own_redis.url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Hosted("cache-index", CacheIndexService(index), index))
        cluster = Conducting(bus, ConductorSettings(nats_url=own_nats.url), stack)
        yield Replicated(cluster, stack)
    await bus.close()


async def test_what_is_missed_again_and_again_gets_copies_from_the_one_that_leads(
    replicated: Replicated,
) -> None:
    await replicated.start(2)

    async def all_have_it() -> bool:
        await replicated.miss(4)
        return replicated.holders() == set(NAMES)

    await until(all_have_it, timeout_s=15, what="a copy on every node")
    asked = [one for node in replicated.nodes.values() for one in node.replications]
    assert {one.keys for one in asked} == {replicated.prefix}
    assert len(asked) == 2
    assert replicated.nodes["n1"].replications == []
    # The node has a copy before the conductor hears of it.
    await until(lambda: sum(copies for _, copies in replicated.states()) == 2, what="counted")
    assert [copies for leads, copies in replicated.states() if not leads] == [0]


async def test_the_conductors_that_do_not_lead_know_what_was_missed_and_take_over(
    replicated: Replicated,
) -> None:
    await replicated.start(2)

    async def is_copied() -> bool:
        await replicated.miss(3)
        return len(replicated.holders()) > 1

    await until(is_copied, timeout_s=15, what="the first copy")
    (leader,) = [at for at, (leads, _) in enumerate(replicated.states()) if leads]
    await replicated.conductors.pop(leader).end()
    other = replicated.conductors[0].service.replicating
    assert other is not None
    assert len(other.table) > 0

    async def all_have_it() -> bool:
        await replicated.miss(4)
        return replicated.holders() == set(NAMES)

    await until(all_have_it, timeout_s=15, what="a copy on every node, by the other one")


async def test_switched_off_nothing_is_copied(replicated: Replicated) -> None:
    cluster = replicated.cluster
    cluster.settings = cluster.settings.model_copy(update={"replication": "off"})
    await replicated.start(1)
    await replicated.miss(10)
    state = (await cluster.state()).replication
    assert state is not None
    assert not state.is_on
    assert replicated.conductors[0].service.replicating is None


async def test_one_holder_leads_until_it_gives_it_up_or_its_time_is_over(
    replicated: Replicated,
) -> None:
    bus = replicated.cluster.bus

    async def lead(holder: str, lease_ms: int = 60_000, task: str = "t") -> bool:
        asked = Lead(task=task, holder=holder, lease_ms=lease_ms)
        reply = await bus.request(subjects.INDEX_LEAD, asked, LeadReply, timeout_s=2)
        return reply.is_leader

    answers = await asyncio.gather(*(lead(f"c{number}") for number in range(8)))
    assert answers.count(True) == 1
    first = f"c{answers.index(True)}"
    assert await lead(first)
    assert not await lead("other")
    assert await lead("other", task="another")
    await lead("other", lease_ms=0)
    assert not await lead("other")
    await lead(first, lease_ms=0)
    assert await lead("other", lease_ms=200)
    await until(lambda: lead("late"), timeout_s=3, what="the lease to end by time")


async def test_the_index_counts_copies_on_other_live_nodes(replicated: Replicated) -> None:
    await replicated.start(1)
    bus, nodes, prefix = replicated.cluster.bus, replicated.nodes, replicated.prefix
    await nodes["n2"].send(nodes["n2"].store_event(prefix, 0, 2))

    async def counts(node: str, keys: bytes) -> list[int]:
        asked = CopiesRequest(root=ROOT, node=node, keys=keys)
        reply = await bus.request(subjects.INDEX_COPIES, asked, CopiesReply, timeout_s=2)
        return list(reply.num_copies)

    first, third, unknown = prefix[:16], prefix[32:48], secrets.token_bytes(16)

    async def is_right() -> bool:
        return await counts("n3", first + third + unknown) == [2, 1, 0]

    await until(is_right, what="both nodes' blocks are known")
    assert await counts("n1", first + third) == [1, 0]
    with pytest.raises(ServiceError) as caught:
        await counts("n1", b"abc")
    assert (caught.value.code, caught.value.field) == (ErrorCode.BAD_REQUEST, "keys")
