"""The conductor on a real NATS, with instances and nodes that only answer."""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.cache_index.service import CacheIndexService
from services.cache_index.settings import CacheIndexSettings
from services.conductor.settings import ConductorSettings
from shared.messages import subjects
from shared.messages.bill import FinishedBill, Reuse, Times
from shared.messages.common import Empty, ErrorCode, InstanceRef
from shared.messages.conductor import (
    ModelsReply,
)
from shared.messages.prefill import Reserve, ReserveReply
from shared.messages.reports import GatewayReport, NodeReport
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.journal import from_line
from tests.support.conducting import Conducting
from tests.support.deadline import until
from tests.support.fake_instance import ROOT, FakeInstance
from tests.support.fake_node import FakeNode
from tests.support.hosted import Hosted
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(own_nats: TestServer) -> AsyncIterator[Conducting]:
    bus = await Bus.connect(own_nats.url, name="test")
    async with AsyncExitStack() as stack:
        yield Conducting(bus, ConductorSettings(nats_url=own_nats.url), stack)
    await bus.close()


async def test_a_placement_is_promised_by_both_and_names_the_losers(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    reply = await cluster.place()
    assert reply.placement is not None
    placement = reply.placement
    assert placement.predicted.queue_s == 0.25
    assert placement.policy == "moonpool"
    assert len(reply.losers) == 1
    prefill, decode = fakes[placement.prefill.id], fakes[placement.decode.id]
    assert [r.incarnation for r in prefill.reserves] == [placement.prefill.incarnation]
    assert [r.num_tokens + r.max_tokens for r in decode.reserves] == [1_050]


async def test_without_a_cache_index_it_places_at_once_with_no_match(cluster: Conducting) -> None:
    await cluster.host()
    await cluster.two_nodes()
    started_s = monotonic_s()
    placement = await cluster.placed(chain=secrets.token_bytes(16 * 62))
    assert monotonic_s() - started_s < 0.5
    assert placement.local_blocks == 0
    assert placement.source is None


async def test_what_is_cached_decides_and_is_fetched_when_another_prefill_is_insisted_on(
    cluster: Conducting, own_redis: TestServer
) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    index_settings = CacheIndexSettings(nats_url=cluster.settings.nats_url, redis_url=own_redis.url)
    chain = secrets.token_bytes(16 * 62)
    async with Hosted("cache-index", CacheIndexService(index_settings), index_settings):
        node = FakeNode(cluster.bus, "n2", ROOT)
        node.incarnation = "n2-1"
        async with node:
            await node.send(node.store_event(chain, 0, 62))

            async def is_hit() -> bool:
                return (await cluster.placed(chain=chain, explain=True)).local_blocks == 62

            await until(is_hit, what="a local hit")
            local = await cluster.placed(chain=chain)
            assert local.prefill.id == "p2"
            assert local.source is None
            remote = await cluster.placed(chain=chain, prefill="p1", decode="d1")
            assert remote.source is not None
            assert (remote.source.node.id, remote.source.num_blocks) == ("n2", 62)
            assert fakes["p1"].reserves[-1].source == remote.source
            assert fakes["p1"].reserves[-1].cached_tokens == 992
            assert remote.decode_source is None
            cold = await cluster.placed(chain=chain, prefill="p1", cache="off")
            assert cold.source is None


async def test_a_refusing_instance_is_passed_over_and_a_full_cluster_says_when(
    cluster: Conducting,
) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    fakes["p1"].answer = fakes["p1"].refuse
    for _ in range(3):
        assert (await cluster.placed()).prefill.id == "p2"
    fakes["p2"].answer = fakes["p2"].refuse
    reply = await cluster.place()
    assert reply.refusal is not None
    assert reply.refusal.code == ErrorCode.OVERLOADED
    assert reply.refusal.retry_after_s == 0.7
    await until(lambda: len(fakes["d1"].cancels) + len(fakes["d2"].cancels) == 1)


async def test_an_instance_that_nobody_listens_for_is_gone_at_once(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    await fakes["p1"].vanish()
    started_s = monotonic_s()
    for _ in range(4):
        assert (await cluster.placed()).prefill.id == "p2"
    assert monotonic_s() - started_s < 1.0
    assert "p1" not in {one.id for one in (await cluster.state()).instances}


async def test_an_instance_that_hangs_costs_one_bounded_wait(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    fakes["d1"].answer = fakes["d1"].hang
    started_s = monotonic_s()
    for _ in range(6):
        assert (await cluster.placed()).decode.id == "d2"
    assert monotonic_s() - started_s < 1.5
    assert len(fakes["d1"].reserves) == 1


async def test_explain_answers_alike_and_reserves_nothing(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    reply = await cluster.place(explain=True, prefill="p2")
    assert reply.placement is not None
    assert reply.placement.prefill.id == "p2"
    assert all(fake.reserves == [] for fake in fakes.values())


async def test_a_burst_spreads_over_two_conductors_before_any_report(cluster: Conducting) -> None:
    await cluster.host()
    await cluster.host()
    for number in range(4):
        await cluster.add("prefill", f"p{number}", f"n{number}")
        await cluster.add("decode", f"d{number}", f"n{number}")

    async def all_know_all() -> bool:
        # Either conductor may answer: twelve answers in a row come from both of them.
        answers = [await cluster.state() for _ in range(12)]
        return all(len(answer.instances) == 8 for answer in answers)

    await until(all_know_all, what="both conductors know every instance")
    replies = await asyncio.gather(*(cluster.place() for _ in range(40)))
    placements = [reply.placement for reply in replies if reply.placement is not None]
    assert len(placements) == 40
    assert max(Counter(p.prefill.id for p in placements).values()) <= 16
    assert max(Counter(p.decode.id for p in placements).values()) <= 16


async def test_models_and_state_show_what_is_ready(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    reply = await cluster.bus.request(subjects.CONDUCTOR_MODELS, Empty(), ModelsReply, timeout_s=2)
    (model,) = reply.models
    assert (model.name, model.root, model.block_tokens) == ("m", ROOT, 16)
    for fake in fakes.values():
        fake.report = fake.report.model_copy(update={"state": "draining"})
        await fake.say()
    await cluster.bus.publish(
        subjects.report("transfer", "n1"), NodeReport(id="n1", incarnation="i", state="ready")
    )
    await cluster.bus.publish(
        subjects.report("gateway", "g1"), GatewayReport(id="g1", incarnation="i", state="ready")
    )

    async def shows_all() -> bool:
        state = await cluster.state()
        return bool(state.nodes and state.gateways and not state.models)

    await until(shows_all)
    refusal = (await cluster.place()).refusal
    assert refusal is not None
    assert (refusal.code, refusal.is_retryable) == (ErrorCode.NO_INSTANCE, True)


async def test_bad_questions_are_answered_with_the_field(cluster: Conducting) -> None:
    await cluster.host()
    await cluster.two_nodes()
    with pytest.raises(ServiceError) as caught:
        await cluster.place(chain=b"abc")
    assert (caught.value.code, caught.value.field) == (ErrorCode.BAD_REQUEST, "chain")
    for changes, code in (
        ({"model": "x"}, ErrorCode.UNKNOWN_MODEL),
        ({"prefill": "p7"}, ErrorCode.UNKNOWN_INSTANCE),
    ):
        refusal = (await cluster.place(**changes)).refusal
        assert refusal is not None
        assert (refusal.code, refusal.field) == (code, next(iter(changes)))


async def test_finished_bills_teach_the_prediction(cluster: Conducting) -> None:
    await cluster.host()
    await cluster.two_nodes()
    before = (await cluster.placed()).predicted.compute_s
    instance = InstanceRef(id="p1", incarnation="p1-1", node="n1")
    bill = FinishedBill(
        request_id="r",
        model="m",
        prefill=instance,
        decode=instance,
        predicted=Times(),
        real=Times(compute_s=before / 10),
        reuse=Reuse(prompt_tokens=1_000),
    )
    await cluster.bus.publish(subjects.FINISHED_BILLS, bill)

    async def is_learned() -> bool:
        return (await cluster.placed()).predicted.compute_s < before / 5

    await until(is_learned)


async def test_the_journal_of_a_live_conductor_replays(cluster: Conducting, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    cluster.settings = cluster.settings.model_copy(update={"journal": path})
    hosted = await cluster.host()
    fakes = await cluster.two_nodes()
    fakes["p1"].answer = fakes["p1"].refuse
    for _ in range(5):
        await cluster.place(chain=secrets.token_bytes(160))
    await hosted.end()
    header, *lines = path.read_text().splitlines()
    seed = int(header.removeprefix("# seed ").partition(",")[0])
    core = ConductorCore(CoreSettings(), random.Random(seed))
    steps = [from_line(line) for line in lines]
    assert sum(len(step.effects) for step in steps) >= 15
    for step in steps:
        assert tuple(core.on_event(step.event, step.now_s)) == step.effects


async def test_a_run_goes_to_the_prefill_with_whom_it_hands_over_to(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    for name in ("p1", "p2"):
        fakes[name].answer = fakes[name].start
    run = b"not looked into"
    placement = await cluster.placed(run=run, num_tokens=20, remaining_ms=9_000)
    assert placement.is_started
    (asked,) = fakes[placement.prefill.id].reserves
    assert (asked.run, asked.decode) == (run, placement.decode)
    assert 8_000 < asked.remaining_ms <= 9_000
    assert placement.decode is not None
    assert [one.run for one in fakes[placement.decode.id].reserves] == [b""]
    assert not (await cluster.placed(num_tokens=20)).is_started


async def test_a_run_whose_decode_refused_is_left_for_its_gateway_to_direct(
    cluster: Conducting,
) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    refused: list[str] = []

    def refuses_once(fake: FakeInstance) -> Callable[[Reserve], Awaitable[ReserveReply]]:
        async def answer(asked: Reserve) -> ReserveReply:
            if refused:
                return ReserveReply(is_accepted=True)
            refused.append(fake.report.id)
            return await fake.refuse(asked)

        return answer

    for number in (1, 2):
        fakes[f"p{number}"].answer = fakes[f"p{number}"].start
        fakes[f"d{number}"].answer = refuses_once(fakes[f"d{number}"])
    placement = await cluster.placed(run=b"run")
    (asked,) = fakes[placement.prefill.id].reserves
    assert asked.decode is not None
    assert placement.decode is not None
    assert [asked.decode.id] == refused
    assert placement.decode.id not in refused
    assert not placement.is_started


async def test_what_is_explained_is_asked_of_nobody(cluster: Conducting) -> None:
    await cluster.host()
    fakes = await cluster.two_nodes()
    await cluster.placed(explain=True, run=b"run")
    assert not any(fake.reserves for fake in fakes.values())
