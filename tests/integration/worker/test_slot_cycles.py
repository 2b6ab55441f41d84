"""Two requests over two small pools, each holding what the other waits for: one gives way, soon."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.engine.loaded_model import LoadedModel
from shared.messages.common import ErrorCode, Sampling
from shared.runtime.clock import monotonic_s
from tests.integration.worker.conftest import two_nodes
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import TwoNodes

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=6, ignore_eos=True)
NUM_TOKENS = 1_800
NUM_BLOCKS = 8


@pytest.fixture
async def tight_nodes(
    nats_url: str, engine_cache: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TwoNodes]:
    """Pools with room for one prompt and a half."""
    slots = NUM_BLOCKS * 3 // 2
    async with two_nodes(nats_url, engine_cache, loaded, monkeypatch, slots) as made:
        yield made


async def test_prefills_that_wait_for_each_others_decode_do_not_wait_long(
    tight_nodes: TwoNodes,
) -> None:
    nodes, submit = tight_nodes, tight_nodes.bench.submit
    gates = [node.gate("allocate") for node in (nodes.a, nodes.b)]
    prompts = [prompt(NUM_TOKENS, seed=seed) for seed in range(2)]
    pairs = [(nodes.prefill, nodes.far_decode), (nodes.far_prefill, nodes.decode)]
    first, second = [
        await submit(tokens, *pair, sampling=SHORT, cache="off")
        for tokens, pair in zip(prompts, pairs, strict=True)
    ]
    async with asyncio.timeout(10):  # both prefills ask before either decode
        for gate in gates:
            await gate.entered.wait()
    for gate in gates:
        gate.open.set()
    start_s = monotonic_s()
    await second.done()
    assert second.error is not None
    assert (second.error.code, second.error.is_retryable) == (ErrorCode.OVERLOADED, True)
    await first.done()
    assert monotonic_s() - start_s < 8.0  # neither waited until it gives up by itself
    assert (first.error, first.text) == (None, reference_answer(prompts[0], SHORT))
    await nodes.bench.cancel(second.ref)
    again = await (
        await submit(
            prompts[1],
            *pairs[1],
            sampling=SHORT,
            given=second.text,
            ref=nodes.bench.new_ref(1, second.ref.request_id),
        )
    ).done()
    assert second.text + again.text == reference_answer(prompts[1], SHORT)
    await nodes.nothing_is_held()


async def test_many_requests_across_two_tight_pools_all_end(tight_nodes: TwoNodes) -> None:
    """Each is tried again as a gateway does it; nobody is tried very often."""
    nodes, submit = tight_nodes, tight_nodes.bench.submit
    pairs = [(nodes.prefill, nodes.far_decode), (nodes.far_prefill, nodes.decode)]
    prompts = [prompt(NUM_TOKENS - 100 * number, seed=number) for number in range(6)]
    expected = [reference_answer(tokens, SHORT) for tokens in prompts]
    open_answers = {
        number: await submit(tokens, *pairs[number % 2], sampling=SHORT)
        for number, tokens in enumerate(prompts)
    }
    given: dict[int, list[int]] = {number: [] for number in open_answers}
    while open_answers:
        number, answer = open_answers.popitem()
        await answer.done(30)
        given[number] += answer.text
        if answer.error is not None:
            assert answer.error.is_retryable, answer.error
            assert answer.ref.attempt < 4
            await nodes.bench.cancel(answer.ref)
            ref = nodes.bench.new_ref(answer.ref.attempt + 1, answer.ref.request_id)
            open_answers[number] = await submit(
                prompts[number], *pairs[number % 2], sampling=SHORT, given=given[number], ref=ref
            )
    assert [given[number] for number in range(len(prompts))] == expected
    await nodes.nothing_is_held()
