"""A process in both roles, and one that changes its role while it works."""

import asyncio

import pytest

from shared.messages import subjects
from shared.messages.common import Ok, Sampling
from shared.messages.reports import InstanceReport
from shared.messages.worker import Drain, DrainReply, SetRole
from shared.runtime.errors import NoResponder, ServiceError
from tests.support.deadline import until
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import TwoNodes

pytestmark = pytest.mark.integration
GREEDY = Sampling(max_tokens=8, ignore_eos=True)


async def test_a_process_in_both_roles_answers_by_itself_and_for_others(nodes: TwoNodes) -> None:
    bench = nodes.bench
    reports: dict[str, InstanceReport] = {}

    def note(report: InstanceReport) -> None:
        reports[report.service] = report

    worker = await bench.start_worker("prefill", "a", role="both")
    await bench.bus.subscribe(subjects.report("*", worker.process.id), InstanceReport, note)
    prefill, decode = worker.as_role("prefill"), worker.as_role("decode")
    assert prefill.ref.incarnation != decode.ref.incarnation
    for seed, pair in enumerate(
        ((prefill, decode), (prefill, nodes.far_decode), (nodes.far_prefill, decode))
    ):
        tokens = prompt(700, seed=seed)
        answer = await (await bench.submit(tokens, *pair, sampling=GREEDY)).done()
        assert answer.text == reference_answer(tokens, GREEDY)
    await until(lambda: set(reports) == {"prefill", "decode"}, what="reports of both roles")
    assert reports["prefill"].incarnation == prefill.ref.incarnation
    assert reports["decode"].incarnation == decode.ref.incarnation
    await nodes.nothing_is_held()
    await until(lambda: (prefill.num_attempts, decode.num_attempts) == (0, 0), what="no attempts")
    assert decode.device_tokens == 0


async def test_a_role_changes_when_what_runs_in_it_has_ended(nodes: TwoNodes) -> None:
    bench, worker = nodes.bench, nodes.decode
    tokens = prompt(300)
    gate = nodes.a.gate("seal")
    running = await bench.submit(tokens, nodes.prefill, worker, sampling=GREEDY)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    old = worker.ref
    subject = subjects.instance("decode", worker.process.id, "role")
    await bench.bus.request(subject, SetRole(role="prefill"), Ok, timeout_s=5)
    await until(lambda: worker.context.state == "draining", what="the old role drains")
    refused = await bench.reserve(worker, bench.new_ref(), tokens)
    assert not refused.is_accepted
    gate.open.set()
    assert (await running.done()).text == reference_answer(tokens, GREEDY)
    await until(lambda: list(worker.service.units) == ["prefill"], what="the new role")
    await until(lambda: worker.context.state == "ready", what="ready in it")
    assert worker.ref.incarnation != old.incarnation
    with pytest.raises(NoResponder):
        await bench.bus.request(subject, SetRole(role="decode"), Ok, timeout_s=5)
    other = prompt(300, seed=1)
    answer = await (await bench.submit(other, worker, nodes.far_decode, sampling=GREEDY)).done()
    assert answer.text == reference_answer(other, GREEDY)
    await nodes.nothing_is_held()


async def test_a_role_that_is_added_leaves_the_first_at_work(nodes: TwoNodes) -> None:
    bench, worker = nodes.bench, nodes.prefill
    before = worker.ref
    subject = subjects.instance("prefill", worker.process.id, "role")
    await bench.bus.request(subject, SetRole(role="both"), Ok, timeout_s=5)
    await until(lambda: set(worker.service.units) == {"prefill", "decode"}, what="both roles")
    decode = worker.as_role("decode")
    await until(lambda: decode.context.state == "ready", what="the second role")
    assert worker.as_role("prefill").ref == before
    tokens = prompt(300, seed=2)
    answer = await (await bench.submit(tokens, worker, decode, sampling=GREEDY)).done()
    assert answer.text == reference_answer(tokens, GREEDY)
    await nodes.nothing_is_held()


async def test_a_drained_instance_finishes_what_runs_and_can_be_taken_back(nodes: TwoNodes) -> None:
    bench, worker = nodes.bench, nodes.decode
    tokens = prompt(300)
    gate = nodes.a.gate("seal")
    running = await bench.submit(tokens, nodes.prefill, worker, sampling=GREEDY)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    subject = subjects.instance("decode", worker.process.id, "drain")
    reply = await bench.bus.request(subject, Drain(is_over=False), DrainReply, timeout_s=5)
    assert reply.state == "draining"
    refused = await bench.reserve(worker, bench.new_ref(), tokens)
    assert not refused.is_accepted
    gate.open.set()
    assert (await running.done()).text == reference_answer(tokens, GREEDY)
    back = await bench.bus.request(subject, Drain(is_over=True), DrainReply, timeout_s=5)
    assert back.state == "ready"
    other = prompt(300, seed=1)
    answer = await (await bench.submit(other, nodes.prefill, worker, sampling=GREEDY)).done()
    assert answer.text == reference_answer(other, GREEDY)
    await nodes.nothing_is_held()


async def test_an_unknown_role_is_refused_by_name(nodes: TwoNodes) -> None:
    subject = subjects.instance("prefill", nodes.prefill.process.id, "role")
    answer = await nodes.bench.bus.client.request(subject, b'{"role": "cook"}', timeout=5)
    assert answer.headers is not None
    assert answer.headers["Nats-Service-Error-Code"] == "400"
    assert "role" in answer.headers["Nats-Service-Error"]
    with pytest.raises(ServiceError):
        await nodes.bench.bus.request(subject, Ok(), Ok, timeout_s=5)
