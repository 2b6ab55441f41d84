"""Admission `baseline`: decode looks when a prefill is done; what it refuses leaves nothing."""

import asyncio

import pytest

from shared.messages.common import ErrorCode, Sampling
from shared.scheduling.cost_model import CostProfile
from tests.support.deadline import until
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import TwoNodes
from tests.support.worker_bench import Answer, Worker

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=4, ignore_eos=True)
LONG = Sampling(max_tokens=1_000, ignore_eos=True)
NUM_TOKENS = 300
WIDE_MS = 60_000.0
PRIOR = CostProfile()


def step_ms(batch: int) -> float:
    """A target that so many sequences keep to before anything is learnt, and one more does not."""
    return 1e3 * (PRIOR.decode_step_s + PRIOR.decode_sequence_s * (batch + 0.999))


async def ask(
    nodes: TwoNodes, seed: int, judged_tbt_ms: float, decode: Worker, sampling: Sampling = SHORT
) -> Answer:
    tokens = prompt(NUM_TOKENS, seed=seed)
    return await nodes.bench.submit(
        tokens, nodes.prefill, decode, sampling=sampling, judged_tbt_ms=judged_tbt_ms
    )


@pytest.mark.parametrize("is_near", [True, False])
async def test_a_refusal_comes_instead_of_token_0_and_frees_all_on_both_nodes(
    nodes: TwoNodes, is_near: bool
) -> None:
    decode = nodes.decode if is_near else nodes.far_decode
    answer = await (await ask(nodes, 1, 1.0, decode)).done()
    assert answer.error is not None
    assert (answer.error.code, answer.error.is_retryable) == (ErrorCode.OVERLOADED, True)
    assert answer.error.retry_after_s is not None
    targets = answer.error.targets
    assert targets is not None
    assert targets.predicted_tbt_s == pytest.approx(1e-3 * step_ms(0), abs=2e-3)
    assert targets.allowed_tbt_s == pytest.approx(1e-3)
    assert (answer.tokens, len(answer.chunks)) == ({}, 1)
    times = answer.chunks[0].times
    assert times is not None
    assert times.compute_s > 0
    assert decode.load.refused_total == 1
    await nodes.nothing_is_held()
    # What was computed is cached: whoever comes back computes the last chunk alone.
    again = await (await ask(nodes, 1, WIDE_MS, decode)).done()
    assert again.text == reference_answer(prompt(NUM_TOKENS, seed=1), SHORT)
    assert again.reuse.local_tokens == 256
    await nodes.nothing_is_held()


async def test_prompts_that_are_done_at_one_time_count_each_other(nodes: TwoNodes) -> None:
    """Eight at once, over two nodes; the target leaves room for three: three it is, whoever."""
    asked = [ask(nodes, seed, step_ms(3), nodes.far_decode, LONG) for seed in range(10, 18)]
    answers = await asyncio.gather(*asked)
    await until(lambda: sum(a.error is not None for a in answers) == 5, what="five are refused")
    joined = [answer for answer in answers if answer.error is None]
    await until(lambda: all(len(one.tokens) > 2 for one in joined), what="three answer")
    assert nodes.far_decode.load.refused_total == 5
    for answer in answers:
        if answer.error is not None:
            assert answer.tokens == {}
            assert answer.error.targets is not None
    # One that has no target is not judged, and a full batch says nothing against it.
    free = await nodes.bench.submit(
        prompt(NUM_TOKENS, seed=30), nodes.prefill, nodes.far_decode, sampling=SHORT
    )
    assert (await free.done()).text == reference_answer(prompt(NUM_TOKENS, seed=30), SHORT)
    for answer in joined:
        await nodes.bench.cancel(answer.ref)
    await nodes.nothing_is_held()
    assert len(joined) == 3


async def test_a_request_whose_client_has_tokens_is_not_judged_again(nodes: TwoNodes) -> None:
    tokens = prompt(NUM_TOKENS, seed=2)
    wanted = reference_answer(tokens, SHORT)
    answer = await (
        await nodes.bench.submit(
            tokens,
            nodes.prefill,
            nodes.decode,
            sampling=SHORT,
            given=wanted[:2],
            judged_tbt_ms=1.0,
        )
    ).done()
    assert (answer.error, answer.text) == (None, wanted[2:])
    assert nodes.decode.load.refused_total == 0
    await nodes.nothing_is_held()


async def test_an_answer_that_ends_with_token_0_needs_no_decode_and_is_not_judged(
    nodes: TwoNodes,
) -> None:
    tokens, one = prompt(NUM_TOKENS, seed=3), Sampling(max_tokens=1, ignore_eos=True)
    answer = await (
        await nodes.bench.submit(
            tokens, nodes.prefill, nodes.decode, sampling=one, judged_tbt_ms=1.0
        )
    ).done()
    assert (answer.error, answer.text) == (None, reference_answer(tokens, one))
    await nodes.nothing_is_held()
