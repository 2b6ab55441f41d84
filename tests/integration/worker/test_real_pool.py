"""The workers on real transfer processes: bytes move between two mapped segments."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.engine.loaded_model import LoadedModel
from shared.messages import subjects
from shared.messages.common import ErrorCode, FetchSource, InstanceRef, Sampling
from shared.messages.decode import KvBlock, KvReady
from shared.messages.reports import InstanceReport, NodeReport
from tests.support.deadline import until
from tests.support.processes import ServiceProcess
from tests.support.reference_answers import MODEL, prompt, reference_answer
from tests.support.worker_bench import Worker, WorkerBench, worker_bench

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=8, ignore_eos=True)
POOL_BYTES = 8 << 20


@pytest.fixture
def shared_dir() -> Iterator[Path]:
    prefix = f"moonpool-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def transfers(nats_url: str, shared_dir: Path, tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    common = {
        "nats_url": nats_url,
        "shared_dir": shared_dir,
        "pool_bytes": POOL_BYTES,
        "drain_timeout_s": 1,
    }
    with (
        ServiceProcess("transfer", tmp_path / "a.log", instance_id="a", **common) as a,
        ServiceProcess("transfer", tmp_path / "b.log", instance_id="b", **common) as b,
    ):
        yield [a, b]


@dataclass
class RealNodes:
    bench: WorkerBench
    reports: dict[str, NodeReport]
    prefill: Worker
    decode: Worker
    far_prefill: Worker
    far_decode: Worker

    async def nothing_is_held(self) -> None:
        def is_free() -> bool:
            return all(
                (report.slots_writing, report.slots_private, report.slots_leased) == (0, 0, 0)
                and report.slots_free + report.slots_sealed == report.slots_total
                for report in self.reports.values()
            )

        await until(
            lambda: not any(worker.num_attempts for worker in self.bench.workers), what="no work"
        )
        self.reports.clear()
        await until(lambda: len(self.reports) == 2 and is_free(), what="no slot is held")
        assert all(worker.device_tokens == 0 for worker in self.bench.workers)


@pytest.fixture
async def nodes(
    nats_url: str,
    tmp_path: Path,
    shared_dir: Path,
    loaded: LoadedModel,
    engine_cache: Path,
    transfers: list[ServiceProcess],
) -> AsyncIterator[RealNodes]:
    async with worker_bench(nats_url, engine_cache, shared_dir) as bench:
        reports: dict[str, NodeReport] = {}

        def on_report(report: NodeReport) -> None:
            reports[report.id] = report

        await bench.bus.subscribe(subjects.report("transfer", "*"), NodeReport, on_report)
        yield RealNodes(
            bench,
            reports,
            await bench.start_worker("prefill", "a"),
            await bench.start_worker("decode", "a"),
            await bench.start_worker("prefill", "b"),
            await bench.start_worker("decode", "b"),
        )


async def test_cold_local_remote_far_and_uncached_runs_give_the_same_tokens(
    nodes: RealNodes, loaded: LoadedModel
) -> None:
    tokens = prompt(1000)
    expected = reference_answer(tokens, SHORT)
    block_bytes = loaded.layout.block_bytes
    submit = nodes.bench.submit

    off = await (await submit(tokens, nodes.prefill, nodes.far_decode, cache="off")).done()
    assert (off.text, off.reuse.cached_tokens) == (expected, 0)
    cold = await (await submit(tokens, nodes.prefill, nodes.decode)).done()
    assert (cold.text, cold.reuse.cached_tokens, cold.reuse.streamed_bytes) == (expected, 0, 0)
    local = await (await submit(tokens, nodes.prefill, nodes.decode)).done()
    assert (local.text, local.reuse.local_tokens) == (expected, 768)
    source = FetchSource(node=nodes.prefill.node, num_blocks=3)
    remote = await (await submit(tokens, nodes.far_prefill, nodes.far_decode, source=source)).done()
    assert (remote.text, remote.reuse.remote_tokens) == (expected, 768)
    assert remote.reuse.fetched_bytes == 3 * block_bytes
    assert remote.reuse.transport == "local"
    other = prompt(900, seed=5)
    far = await (await submit(other, nodes.prefill, nodes.far_decode)).done()
    assert far.text == reference_answer(other, SHORT)
    assert far.reuse.streamed_bytes == block_bytes * 900 // 256
    await nodes.nothing_is_held()


async def test_concurrent_requests_over_both_nodes_leave_nothing_held(nodes: RealNodes) -> None:
    prompts = [prompt(300 + 100 * number, seed=number % 3) for number in range(8)]
    pairs = [
        (nodes.prefill, nodes.far_decode),
        (nodes.far_prefill, nodes.decode),
        (nodes.prefill, nodes.decode),
    ]
    answers = [
        await nodes.bench.submit(tokens, *pairs[number % 3], sampling=SHORT)
        for number, tokens in enumerate(prompts)
    ]
    await nodes.bench.cancel(answers.pop().ref)
    for answer, tokens in zip(answers, prompts, strict=False):
        assert (await answer.done()).text == reference_answer(tokens, SHORT)
    await nodes.nothing_is_held()


async def test_a_transfer_that_is_killed_costs_an_error_to_try_again_and_workers_come_back(
    nodes: RealNodes,
    transfers: list[ServiceProcess],
    nats_url: str,
    shared_dir: Path,
    tmp_path: Path,
) -> None:
    tokens = prompt(700)
    before = nodes.prefill.context.incarnation
    transfers[0].end(signal.SIGKILL)
    await until(lambda: nodes.prefill.context.state != "ready", what="the loss is seen")
    with ServiceProcess(
        "transfer",
        tmp_path / "a2.log",
        instance_id="a",
        nats_url=nats_url,
        shared_dir=shared_dir,
        pool_bytes=POOL_BYTES,
        drain_timeout_s=1,
    ):
        await until(lambda: nodes.prefill.context.incarnation != before, what="another incarnation")
        await until(
            lambda: {nodes.prefill.context.state, nodes.decode.context.state} == {"ready"},
            what="ready again",
        )
        answer = await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)).done()
        assert answer.text == reference_answer(tokens, SHORT)


async def test_a_transfer_that_hangs_is_given_up_until_it_answers_again(
    nodes: RealNodes, transfers: list[ServiceProcess]
) -> None:
    """Its socket stays open and connectable all the time."""
    tokens = prompt(700)
    before = nodes.prefill.context.incarnation
    transfers[0].send(signal.SIGSTOP)
    try:
        stuck = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)
        async with asyncio.timeout(6):
            await stuck.done()
        assert stuck.error is not None
        assert (stuck.error.code, stuck.error.is_retryable) == (ErrorCode.POOL_LOST, True)
        assert nodes.prefill.context.state != "ready"
    finally:
        transfers[0].send(signal.SIGCONT)
    await nodes.bench.cancel(stuck.ref)
    await until(
        lambda: {nodes.prefill.context.state, nodes.decode.context.state} == {"ready"},
        what="ready again",
    )
    assert nodes.prefill.context.incarnation != before
    await nodes.nothing_is_held()
    answer = await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)).done()
    assert answer.text == reference_answer(tokens, SHORT)
    await nodes.nothing_is_held()


async def test_a_prefill_killed_before_its_hand_over_costs_decode_nothing_for_long(
    nodes: RealNodes, nats_url: str, shared_dir: Path, tmp_path: Path, engine_cache: Path
) -> None:
    seen: dict[str, InstanceReport] = {}

    def on_report(report: InstanceReport) -> None:
        seen[report.id] = report

    await nodes.bench.bus.subscribe(subjects.report("prefill", "victim"), InstanceReport, on_report)
    with ServiceProcess(
        "prefill",
        tmp_path / "victim.log",
        instance_id="victim",
        nats_url=nats_url,
        shared_dir=shared_dir,
        cache_dir=engine_cache,
        model=MODEL,
        node="a",
    ) as victim:
        await until(lambda: "victim" in seen, what="the victim reports", timeout_s=30)
        report = seen["victim"]
        ref = InstanceRef(id=report.id, incarnation=report.incarnation, node=report.node)
        answer = await nodes.bench.submit_decode_alone(prompt(700), ref, nodes.far_decode)
        # The first layers are said to be ready: from then on decode holds slots.
        block = KvBlock(index=0, slot=0, generation=0, valid_tokens=256)
        await nodes.bench.bus.publish(
            subjects.instance("decode", nodes.far_decode.context.id, "kv"),
            KvReady(
                ref=answer.ref, node=nodes.prefill.node, block=block, first_layer=0, end_layer=1
            ),
        )
        nodes.reports.clear()
        await until(
            lambda: "b" in nodes.reports and nodes.reports["b"].slots_writing == 3,
            what="decode has slots for the prompt",
        )
        victim.end(signal.SIGKILL)
    async with asyncio.timeout(10):
        await answer.done()
    assert answer.error is not None
    assert (answer.error.code, answer.error.is_retryable) == (ErrorCode.PEER_LOST, True)
    await nodes.nothing_is_held()
