"""Every way through prefill and decode gives the tokens of a single engine without a cache."""

import numpy as np
import pytest

from shared.messages import subjects
from shared.messages.common import FetchSource, Sampling
from shared.messages.index import Expected
from tests.support.deadline import until
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import NUM_SLOTS, TwoNodes

pytestmark = pytest.mark.integration
GREEDY = Sampling(max_tokens=8, ignore_eos=True)


@pytest.mark.parametrize("num_tokens", [1, 255, 256, 257, 700, 1024])
async def test_a_cold_run_and_a_local_hit_give_the_reference_tokens(
    nodes: TwoNodes, num_tokens: int
) -> None:
    tokens = prompt(num_tokens, seed=num_tokens)
    expected = reference_answer(tokens, GREEDY)
    cold = await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)).done()
    assert cold.error is None
    assert (cold.text, cold.finish_reason) == (expected, "length")
    assert cold.reuse.cached_tokens == 0
    hit = await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)).done()
    assert hit.text == expected
    assert hit.reuse.local_tokens == (num_tokens - 1) // 256 * 256
    assert (hit.reuse.remote_tokens, hit.reuse.streamed_bytes) == (0, 0)
    await nodes.nothing_is_held()


async def test_decode_on_another_node_streams_the_kv_and_keeps_a_replica(nodes: TwoNodes) -> None:
    tokens = prompt(700)
    expected = reference_answer(tokens, GREEDY)
    cold = await (await nodes.bench.submit(tokens, nodes.prefill, nodes.far_decode)).done()
    assert cold.text == expected
    block_bytes = nodes.a.geometry.block_bytes
    assert cold.reuse.streamed_bytes == block_bytes * 700 // 256
    assert any(item.end_layer - item.first_layer == 1 for item in nodes.b.pulls)
    replica = await (await nodes.bench.submit(tokens, nodes.far_prefill, nodes.far_decode)).done()
    assert replica.text == expected
    assert replica.reuse.local_tokens == 512
    await nodes.nothing_is_held()


async def test_a_remote_hit_is_fetched_and_gives_the_same_tokens(nodes: TwoNodes) -> None:
    tokens = prompt(1000)
    expected = reference_answer(tokens, GREEDY)
    await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)).done()
    hit = await (
        await nodes.bench.submit(
            tokens,
            nodes.far_prefill,
            nodes.far_decode,
            source=FetchSource(node=nodes.a.ref, num_blocks=3),
        )
    ).done()
    assert hit.text == expected
    assert (hit.reuse.local_tokens, hit.reuse.remote_tokens) == (0, 768)
    assert hit.reuse.fetched_bytes == 3 * nodes.a.geometry.block_bytes
    await nodes.nothing_is_held()


async def test_without_cache_nothing_is_read_and_nothing_is_published(nodes: TwoNodes) -> None:
    tokens = prompt(700)
    expected = reference_answer(tokens, GREEDY)
    for decode in (nodes.decode, nodes.far_decode):
        off = await (await nodes.bench.submit(tokens, nodes.prefill, decode, cache="off")).done()
        assert off.text == expected
        assert off.reuse.cached_tokens == 0
    await nodes.nothing_is_held()
    assert nodes.a.pool.counts.free == nodes.b.pool.counts.free == NUM_SLOTS


async def test_a_sibling_waits_for_what_is_being_computed_and_the_index_hears_of_it(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.worker.prefix_holding.LOOK_AGAIN_S", -1.0)
    tokens = prompt(900, seed=3)
    heard: list[Expected] = []
    await nodes.bench.bus.subscribe(subjects.INDEX_EXPECTED, Expected, heard.append)
    await nodes.bench.bus.flush()
    gate = nodes.a.gate("seal")
    first = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)
    await until(lambda: gate.entered.is_set(), what="the first one seals")
    sibling = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, cached_tokens=768)
    other = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode)
    gate.open.set()
    expected = reference_answer(tokens, GREEDY)
    for one in (first, sibling, other):
        assert (await one.done()).text == expected
    assert first.reuse.cached_tokens == 0
    assert sibling.reuse.local_tokens == 768
    # Nobody said that it may wait for blocks, but it waited.
    assert other.reuse.local_tokens == 768
    await nodes.nothing_is_held()

    def of_first() -> list[Expected]:
        return [one for one in heard if one.ref.request_id == first.ref.request_id]

    await until(lambda: any(one.is_over for one in of_first()), what="the end of it is told")
    told = [(one.done_blocks, len(one.chain) // 16) for one in of_first() if not one.is_over]
    assert told[0] == (0, 3)
    assert told == sorted(told)
    assert {one.instance.id for one in heard} == {nodes.prefill.context.id}
    # The sibling has nothing to compute that others could use.
    assert not any(one.chain for one in heard if one.ref == sibling.ref)


async def test_requests_in_one_batch_give_what_each_gives_alone(nodes: TwoNodes) -> None:
    sampling = Sampling(max_tokens=12, temperature=0.8, top_p=0.9, seed=7, ignore_eos=True)
    prompts = [prompt(300 + 40 * number, seed=number) for number in range(6)]
    expected = [reference_answer(tokens, sampling) for tokens in prompts]
    answers = [
        await nodes.bench.submit(
            tokens, nodes.prefill, (nodes.decode, nodes.far_decode)[number % 2], sampling=sampling
        )
        for number, tokens in enumerate(prompts)
    ]
    assert [(await answer.done()).text for answer in answers] == expected
    await nodes.nothing_is_held()


@pytest.mark.parametrize("num_given", [0, 1, 3, 7])
async def test_penalties_count_the_same_tokens_wherever_the_answer_goes_on(
    nodes: TwoNodes, num_given: int
) -> None:
    sampling = Sampling(
        max_tokens=8,
        repetition_penalty=1.8,
        presence_penalty=1.5,
        frequency_penalty=0.5,
        logit_bias=[(65, 3.0)],
        top_logprobs=2,
        ignore_eos=True,
    )
    tokens = prompt(300)
    expected = reference_answer(tokens, sampling)
    assert expected != reference_answer(tokens, GREEDY)
    answer = await (
        await nodes.bench.submit(
            tokens,
            nodes.prefill,
            nodes.far_decode,
            sampling=sampling,
            given=expected[:num_given],
        )
    ).done()
    assert answer.tokens == dict(enumerate(expected[num_given:], start=num_given))
    for chunk in answer.chunks:
        assert [len(one.top) for one in chunk.logprobs] == [2] * len(chunk.tokens)
    await nodes.nothing_is_held()


@pytest.mark.parametrize("num_given", [1, 3, 7])
async def test_a_resumed_request_goes_on_as_if_nothing_had_happened(
    nodes: TwoNodes, num_given: int
) -> None:
    sampling = Sampling(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True)
    tokens = prompt(520)
    expected = reference_answer(tokens, sampling)
    resumed = await (
        await nodes.bench.submit(
            tokens,
            nodes.prefill,
            nodes.far_decode,
            sampling=sampling,
            given=expected[:num_given],
        )
    ).done()
    assert resumed.tokens == dict(enumerate(expected[num_given:], start=num_given))
    await nodes.nothing_is_held()


async def test_an_answer_of_one_token_ends_at_prefill_and_lets_decode_go(nodes: TwoNodes) -> None:
    one = Sampling(max_tokens=1, ignore_eos=True)
    tokens = prompt(300)
    answer = await (
        await nodes.bench.submit(tokens, nodes.prefill, nodes.far_decode, sampling=one)
    ).done()
    assert answer.text == reference_answer(tokens, one)
    assert (answer.finish_reason, answer.chunks[-1].stage) == ("length", "prefill")
    await nodes.nothing_is_held()


async def test_blocks_smaller_than_the_grid_give_the_same_tokens(
    small_block_nodes: TwoNodes,
) -> None:
    nodes, submit = small_block_nodes, small_block_nodes.bench.submit
    tokens = prompt(1000)
    expected = reference_answer(tokens, GREEDY)
    cold = await (await submit(tokens, nodes.prefill, nodes.far_decode)).done()
    assert cold.text == expected
    assert cold.reuse.streamed_bytes == nodes.a.geometry.block_bytes * 1000 // 64
    assert nodes.a.pool.counts.sealed == 768 // 64  # whole grid chunks only
    hit = await (await submit(tokens, nodes.prefill, nodes.decode)).done()
    assert (hit.text, hit.reuse.local_tokens) == (expected, 768)
    source = FetchSource(node=nodes.a.ref, num_blocks=12)
    other = np.concatenate([tokens[:600], prompt(300, seed=1)])
    remote = await (await submit(other, nodes.far_prefill, nodes.far_decode, source=source)).done()
    assert remote.text == reference_answer(other, GREEDY)
    assert remote.reuse.cached_tokens == 512
    await nodes.nothing_is_held()
