"""A prompt's log probabilities from its prefill: whole, in pieces, of the very pass."""

import numpy as np
import numpy.typing as npt
import pytest

from shared.messages.common import ErrorCode, Sampling
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.reference_answers import chain_of, prompt, reference_answer
from tests.support.two_nodes import TwoNodes
from tests.support.worker_bench import Answer

pytestmark = pytest.mark.integration
NOTHING = Sampling(max_tokens=0)
GREEDY = Sampling(max_tokens=6, ignore_eos=True, top_logprobs=1)


async def scored(nodes: TwoNodes, tokens: npt.NDArray[np.int32], num_top: int = 1) -> Answer:
    submitted = await nodes.bench.submit(
        tokens, nodes.prefill, None, sampling=NOTHING, cache="write", prompt_logprobs=num_top
    )
    return await submitted.done()


def logprobs_of(answer: Answer) -> list[float]:
    """Of all tokens but the first, in order; raises when a piece is missing."""
    values: list[float] = []
    for piece in answer.prompt:
        assert piece.first == len(values) + 1
        values += np.frombuffer(piece.logprobs, "<f4").tolist()
    return values


@pytest.mark.parametrize("num_tokens", [1, 2, 256, 257, 700])
async def test_a_prompt_is_scored_without_decode(nodes: TwoNodes, num_tokens: int) -> None:
    answer = await scored(nodes, prompt(num_tokens))
    assert answer.error is None
    assert (answer.text, answer.finish_reason) == ([], "length")
    assert len(logprobs_of(answer)) == num_tokens - 1
    assert answer.reuse.scored_tokens == num_tokens - 1
    # One piece for each chunk, and the end after all of them.
    assert len(answer.prompt) == -(-(num_tokens - 1) // 256)
    assert answer.chunks[-1].prompt is None
    times = answer.chunks[-1].times
    assert times is not None
    assert 0 <= times.score_s <= times.compute_s
    assert (times.score_s > 0) == (num_tokens > 1)
    await nodes.nothing_is_held()


async def test_what_is_cached_is_computed_again_and_what_is_computed_is_cached(
    nodes: TwoNodes,
) -> None:
    tokens = prompt(700, seed=1)
    cold = await scored(nodes, tokens)
    again = await scored(nodes, tokens)
    assert again.reuse.cached_tokens == 0
    assert logprobs_of(again) == logprobs_of(cold)
    hit = await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)).done()
    assert hit.reuse.local_tokens == 512
    await nodes.nothing_is_held()


async def test_the_scores_are_those_that_generation_gave(nodes: TwoNodes) -> None:
    """An answer's tokens, scored as the end of a prompt, and the likeliest at their places."""
    tokens = prompt(509, seed=2)  # the answer lies across the border of a chunk
    generated = await (
        await nodes.bench.submit(
            tokens, nodes.prefill, nodes.decode, sampling=GREEDY, prompt_logprobs=1
        )
    ).done()
    answer = generated.text
    assert answer == reference_answer(tokens, Sampling(max_tokens=6, ignore_eos=True))
    told = [one.logprob for chunk in generated.chunks for one in chunk.logprobs]
    longer = np.concatenate([tokens, np.array(answer, dtype=np.int32)])
    found = await scored(nodes, longer)
    values = logprobs_of(found)
    assert values[len(tokens) - 1 :] == pytest.approx(told, abs=1e-4)
    assert values[: len(tokens) - 1] == pytest.approx(logprobs_of(generated), abs=1e-5)
    likeliest = [
        token for piece in found.prompt for token in np.frombuffer(piece.top_tokens, "<i4")
    ]
    assert likeliest[len(tokens) - 1 :] == answer
    await nodes.nothing_is_held()


async def test_all_pieces_are_heard_before_token_0(nodes: TwoNodes) -> None:
    answer = await (
        await nodes.bench.submit(
            prompt(700), nodes.prefill, nodes.far_decode, sampling=GREEDY, prompt_logprobs=3
        )
    ).done()
    kinds = ["piece" if chunk.prompt is not None else "tokens" for chunk in answer.chunks]
    assert kinds[:3] == ["piece"] * 3
    assert "piece" not in kinds[3:]
    for piece in answer.prompt:
        values = np.frombuffer(piece.top_logprobs, "<f4").reshape(piece.num_tokens, 3)
        assert (np.diff(values, axis=1) <= 0).all()
        assert (np.frombuffer(piece.logprobs, "<f4") <= values[:, 0]).all()
    await nodes.nothing_is_held()


async def test_a_cancelled_one_gives_all_back(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("seal")
    answer = await nodes.bench.submit(
        prompt(700), nodes.prefill, None, sampling=NOTHING, cache="write", prompt_logprobs=1
    )
    await until(lambda: gate.entered.is_set(), what="the first chunk is computed")
    await nodes.bench.cancel(answer.ref, nodes.prefill)
    gate.open.set()
    await nodes.nothing_is_held()
    assert not answer.ended.is_set()


async def test_echo_alone_needs_no_logits_and_reads_the_cache(nodes: TwoNodes) -> None:
    tokens = prompt(600, seed=4)
    for cached in (0, 512):
        submitted = await nodes.bench.submit(tokens, nodes.prefill, None, sampling=NOTHING)
        answer = await submitted.done()
        assert (answer.error, answer.text, answer.finish_reason) == (None, [], "length")
        assert answer.prompt == []
        assert answer.reuse.local_tokens == cached
    await nodes.nothing_is_held()


async def test_an_answer_of_one_token_needs_no_decode(nodes: TwoNodes) -> None:
    tokens, one = prompt(300), Sampling(max_tokens=1, ignore_eos=True, top_logprobs=1)
    answer = await (
        await nodes.bench.submit(tokens, nodes.prefill, None, sampling=one, prompt_logprobs=1)
    ).done()
    assert (answer.text, answer.finish_reason) == (reference_answer(tokens, one), "length")
    assert len(answer.chunks[-1].logprobs) == 1
    assert len(logprobs_of(answer)) == 299
    await nodes.nothing_is_held()


async def test_a_run_without_the_decode_that_it_needs_is_refused(nodes: TwoNodes) -> None:
    tokens = prompt(20)
    for decode, sampling in ((None, GREEDY), (nodes.decode, NOTHING)):
        ref = nodes.bench.new_ref()
        chain = chain_of(tokens)
        await nodes.bench.reserve(nodes.prefill, ref, tokens, chain=chain)
        with pytest.raises(ServiceError, match=r"^decode: ") as caught:
            await nodes.bench.run_alone(
                nodes.prefill, tokens, ref, nodes.prefill, decode, sampling=sampling
            )
        assert caught.value.code == ErrorCode.BAD_REQUEST
        await nodes.bench.cancel(ref, nodes.prefill)
    ref = nodes.bench.new_ref()
    await nodes.bench.reserve(nodes.decode, ref, tokens)
    with pytest.raises(ServiceError, match="nothing to decode"):
        await nodes.bench.run_alone(
            nodes.decode, tokens, ref, nodes.prefill, nodes.decode, sampling=NOTHING
        )
    await nodes.bench.cancel(ref, nodes.decode)
    await nodes.nothing_is_held()
