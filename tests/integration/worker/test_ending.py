"""However an attempt ends, at whatever stage: all it held comes back."""

import asyncio
import os
import random
import threading
from typing import Any

import pytest

from shared.engine.prefill import PrefillEngine
from shared.messages.common import ErrorCode, FetchSource, Sampling
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import TwoNodes
from tests.support.worker_bench import Answer

pytestmark = pytest.mark.integration
LONG = Sampling(max_tokens=1000, ignore_eos=True)
SHORT = Sampling(max_tokens=4, ignore_eos=True)
NUM_CANCELS = int(os.environ.get("MOONPOOL_TEST_CANCELS", "60"))


@pytest.mark.parametrize(
    ("node", "operation"),
    [
        ("a", "fetch"),
        ("a", "allocate"),
        ("a", "seal"),
        ("b", "lease"),
        ("b", "allocate"),
        ("b", "pull"),
        ("b", "seal"),
    ],
)
async def test_cancelling_in_the_middle_of_any_pool_call_frees_everything(
    nodes: TwoNodes, node: str, operation: str
) -> None:
    gate = getattr(nodes, node).gate(operation)
    source = FetchSource(node=nodes.b.ref, num_blocks=2) if operation == "fetch" else None
    answer = await nodes.bench.submit(
        prompt(700), nodes.prefill, nodes.far_decode, source=source, sampling=LONG
    )
    async with asyncio.timeout(5):
        await gate.entered.wait()
    await nodes.bench.cancel(answer.ref)
    await nodes.nothing_is_held()
    gate.open.set()
    again = await (
        await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode, sampling=SHORT)
    ).done()
    assert again.text == reference_answer(prompt(700), SHORT)
    await nodes.nothing_is_held()


async def test_cancelling_while_a_layer_computes_stops_between_two_layers(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    whole = PrefillEngine.prefill_chunk
    layers: list[int] = []

    def slow(self: PrefillEngine, *args: Any, on_layer: Any, **kwargs: Any) -> Any:
        def on_layer_slowly(layer: int) -> None:
            layers.append(layer)
            entered.set()
            leave.wait(10)
            on_layer(layer)

        return whole(self, *args, on_layer=on_layer_slowly, **kwargs)

    monkeypatch.setattr(PrefillEngine, "prefill_chunk", slow)
    answer = await nodes.bench.submit(prompt(700), nodes.prefill, nodes.decode)
    await asyncio.to_thread(entered.wait, 5)
    await nodes.bench.cancel(answer.ref)
    assert nodes.a.num_taken > 0  # the thread may still write: nothing is freed under it
    leave.set()
    await nodes.nothing_is_held()
    assert layers == [0]


async def test_cancelling_while_tokens_come_frees_the_device_cache(nodes: TwoNodes) -> None:
    answer = await nodes.bench.submit(prompt(300), nodes.prefill, nodes.decode, sampling=LONG)
    await until(lambda: len(answer.tokens) > 5, what="some tokens")
    assert 300 < nodes.decode.device_tokens < 1300  # not all that it may come to need
    await nodes.bench.cancel(answer.ref)
    await nodes.nothing_is_held()
    assert answer.error is None


async def test_a_reservation_ends_by_cancel_or_by_its_time(nodes: TwoNodes) -> None:
    tokens = prompt(700)
    for worker in (nodes.prefill, nodes.decode):
        first, second = nodes.bench.new_ref(), nodes.bench.new_ref()
        assert (await nodes.bench.reserve(worker, first, tokens)).is_accepted
        assert (await nodes.bench.reserve(worker, second, tokens, ttl_ms=1)).is_accepted
        await nodes.bench.cancel(first)
    await until(lambda: not nodes.prefill.num_attempts, what="expiry")
    await until(lambda: nodes.decode.load.queued_requests == 0, what="expiry")
    await nodes.nothing_is_held()


async def test_a_cancelled_reservation_can_be_made_again_under_the_same_name(
    nodes: TwoNodes,
) -> None:
    tokens, ref = prompt(700), nodes.bench.new_ref()
    await nodes.bench.reserve(nodes.prefill, ref, tokens)
    await nodes.bench.reserve(nodes.decode, ref, tokens)
    await nodes.bench.cancel(ref)
    answer = await (
        await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, ref=ref, sampling=SHORT)
    ).done()
    assert answer.text == reference_answer(tokens, SHORT)


async def test_past_the_deadline_the_gateway_is_told_and_everything_is_freed(
    nodes: TwoNodes,
) -> None:
    gate = nodes.a.gate("seal")
    answer = await (
        await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode, remaining_ms=200)
    ).done()
    assert answer.error is not None
    assert answer.error.code == ErrorCode.DEADLINE
    await nodes.nothing_is_held()
    gate.open.set()


async def test_work_of_a_gateway_that_falls_silent_is_cancelled(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("seal")
    waiting = await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    assert nodes.bench.heartbeat is not None
    nodes.bench.heartbeat.cancel()
    await nodes.nothing_is_held()
    assert waiting.error is None


async def test_a_run_without_a_reservation_or_for_another_incarnation_is_refused(
    nodes: TwoNodes,
) -> None:
    tokens, ref = prompt(700), nodes.bench.new_ref()
    with pytest.raises(ServiceError) as void:
        await nodes.bench.reserve(nodes.prefill, ref, tokens, incarnation="old")
    assert (void.value.code, void.value.is_retryable) == (ErrorCode.VOID_INCARNATION, True)
    await nodes.bench.reserve(nodes.prefill, ref, tokens)
    await nodes.bench.reserve(nodes.decode, ref, tokens)
    await nodes.bench.cancel(ref)
    for worker in (nodes.prefill, nodes.decode):
        with pytest.raises(ServiceError) as late:
            await nodes.bench.run_alone(worker, tokens, ref, nodes.prefill, nodes.decode)
        assert (late.value.code, late.value.is_retryable) == (ErrorCode.NOT_RESERVED, True)


async def test_a_chain_that_is_not_of_the_tokens_is_refused(nodes: TwoNodes) -> None:
    tokens, ref = prompt(700), nodes.bench.new_ref()
    await nodes.bench.reserve(nodes.prefill, ref, tokens)
    with pytest.raises(ServiceError, match="not the keys of the tokens") as refused:
        await nodes.bench.run_alone(
            nodes.prefill, tokens, ref, nodes.prefill, nodes.decode, chain=b"x" * 32
        )
    assert refused.value.field == "chain"


async def test_a_repeated_run_does_nothing_twice(nodes: TwoNodes) -> None:
    tokens = prompt(700)
    gate = nodes.a.gate("seal")
    answer = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)
    for _ in range(2):
        for worker in (nodes.prefill, nodes.decode):
            await nodes.bench.run_alone(worker, tokens, answer.ref, nodes.prefill, nodes.decode)
    gate.open.set()
    await answer.done()
    await nodes.nothing_is_held()
    for worker in (nodes.prefill, nodes.decode):
        await nodes.bench.run_alone(worker, tokens, answer.ref, nodes.prefill, nodes.decode)
    await nodes.nothing_is_held()
    assert sum(len(chunk.tokens) for chunk in answer.chunks) == 4


async def test_cancelling_at_any_moment_many_times_leaves_nothing_held(nodes: TwoNodes) -> None:
    chance = random.Random(5)
    prefills, decodes = (nodes.prefill, nodes.far_prefill), (nodes.decode, nodes.far_decode)
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    kept: list[tuple[Answer, int]] = []
    for number in range(NUM_CANCELS):
        seed = number % 5
        tokens = prompt(chance.choice((200, 600, 800)), seed=seed)
        answer = await nodes.bench.submit(
            tokens, chance.choice(prefills), chance.choice(decodes), sampling=sampling
        )
        if number % 6 == 5:
            kept.append((answer, len(tokens) * 10 + seed))
            continue
        await asyncio.sleep(chance.uniform(0.0, 0.03))
        await nodes.bench.cancel(answer.ref)
    for answer, name in kept:
        assert (await answer.done()).text == reference_answer(
            prompt(name // 10, seed=name % 10), sampling
        )
    await nodes.nothing_is_held()
