"""Broken blocks, full and lost pools: a recompute or an error to try again, never wrong tokens."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.engine.prefill import PrefillEngine
from shared.kv.ids import BlockKey
from shared.messages.common import ErrorCode, Sampling
from shared.worker import slot_wait
from shared.worker.early_taking import EarlyTaking
from tests.support.deadline import until
from tests.support.reference_answers import chain_of, prompt, reference_answer
from tests.support.two_nodes import NUM_SLOTS, TwoNodes

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=4, ignore_eos=True)
LONG = Sampling(max_tokens=200, ignore_eos=True)


async def test_bytes_that_arrive_wrong_are_pulled_again_once(nodes: TwoNodes) -> None:
    tokens = prompt(700)
    nodes.b.corrupt_pulls = 1
    answer = await (
        await nodes.bench.submit(tokens, nodes.prefill, nodes.far_decode, sampling=SHORT)
    ).done()
    assert answer.text == reference_answer(tokens, SHORT)
    await nodes.nothing_is_held()


async def test_bytes_that_stay_wrong_are_an_error_to_try_again(nodes: TwoNodes) -> None:
    nodes.b.corrupt_pulls = 10_000
    answer = await (
        await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode, sampling=SHORT)
    ).done()
    assert answer.error is not None
    assert (answer.error.code, answer.error.is_retryable) == (ErrorCode.KV_LOST, True)
    await nodes.bench.cancel(answer.ref)
    await nodes.nothing_is_held()


async def test_a_bit_that_flips_in_the_pool_before_decode_reads_it_is_an_error_to_try_again(
    nodes: TwoNodes,
) -> None:
    tokens = prompt(700)
    nodes.a.corrupt_seals = 1
    answer = await (
        await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)
    ).done()
    assert answer.error is not None
    assert (answer.error.code, answer.error.is_retryable) == (ErrorCode.KV_LOST, True)
    await nodes.bench.cancel(answer.ref)
    await nodes.nothing_is_held()


async def test_a_block_that_changes_while_it_is_read_makes_the_pass_void(nodes: TwoNodes) -> None:
    tokens = prompt(700)
    expected = reference_answer(tokens, SHORT)
    await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)).done()
    await nodes.nothing_is_held()
    gate = nodes.a.gate("seal")
    answer = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    chain = chain_of(tokens)
    nodes.a.pool.quarantine(chain[:16])  # type: ignore[arg-type]
    gate.open.set()
    await answer.done()
    assert answer.text == expected
    assert answer.reuse.cached_tokens == 0
    await nodes.nothing_is_held()


async def test_nothing_is_published_that_was_computed_from_a_block_that_changed(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(1025)
    chain = chain_of(tokens)
    await (
        await nodes.bench.submit(tokens[:513], nodes.prefill, nodes.decode, sampling=SHORT)
    ).done()
    await nodes.nothing_is_held()
    whole = PrefillEngine.prefill_chunk
    starts: list[int] = []

    def damage_after_the_first(
        self: PrefillEngine, chunk: Any, start: int, *args: Any, **k: Any
    ) -> Any:
        logits = whole(self, chunk, start, *args, **k)
        if not starts:
            nodes.a.pool.quarantine(BlockKey(chain[:16]))
        starts.append(start)
        return logits

    monkeypatch.setattr(PrefillEngine, "prefill_chunk", damage_after_the_first)
    answer = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)
    await answer.done()
    assert starts == [512, 0, 256, 512, 768, 1024]
    assert answer.text == reference_answer(tokens, SHORT)
    await nodes.nothing_is_held()


async def test_the_first_token_does_not_wait_for_the_seal(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("seal")
    tokens = prompt(200)
    answer = await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    await until(lambda: bool(answer.tokens), timeout_s=5)
    assert answer.text == reference_answer(tokens, SHORT)[:1]
    gate.open.set()
    assert (await answer.done()).text == reference_answer(tokens, SHORT)
    await nodes.nothing_is_held()


async def test_decode_takes_no_slots_for_a_prompt_that_only_waits(nodes: TwoNodes) -> None:
    gate, prefix_gate = nodes.a.gate("allocate"), nodes.b.gate("lease")
    answer = await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode, sampling=SHORT)
    async with asyncio.timeout(5):
        await gate.entered.wait()
        await prefix_gate.entered.wait()
    prefix_gate.open.set()
    for _ in range(20):  # what decode does next, it does without waiting for anything outside
        await asyncio.sleep(0)
    assert nodes.b.num_taken == 0
    gate.open.set()
    assert (await answer.done()).text == reference_answer(prompt(700), SHORT)
    await nodes.nothing_is_held()


async def test_a_pool_full_of_leased_prefixes_still_finishes_requests(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that wait hold their prefixes; they give them up when the first gets no slots, also
    those that came to hold theirs after it had asked for room."""
    cached = [prompt(1025, seed=seed) for seed in range(5)]
    for tokens in cached:
        await (await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)).done()
    await nodes.nothing_is_held()
    assert nodes.a.pool.counts.sealed == 20
    gate, asked, ask = nodes.a.gate("allocate"), asyncio.Event(), slot_wait._error_of
    monkeypatch.setattr(EarlyTaking, "ask", lambda *_: None)  # it comes to wait in its turn

    async def ask_once_then_when_open(make_room: Callable[[], Awaitable[None]]) -> Any:
        if asked.is_set():
            await gate.open.wait()
        asked.set()
        return await ask(make_room)

    monkeypatch.setattr(slot_wait, "_error_of", ask_once_then_when_open)
    new = prompt(1800, seed=9)
    answers = [await nodes.bench.submit(new, nodes.prefill, nodes.decode, sampling=SHORT)]
    async with asyncio.timeout(10):
        await asked.wait()
    answers += [
        await nodes.bench.submit(tokens, nodes.prefill, nodes.decode, sampling=SHORT)
        for tokens in cached
    ]
    await until(lambda: nodes.a.pool.counts.held == 20, what="all prefixes are held")
    gate.open.set()
    for answer, tokens in zip(answers, [new, *cached], strict=True):
        await answer.done()
        assert answer.error is None, answer.error
        assert answer.text == reference_answer(tokens, SHORT)
    await nodes.nothing_is_held()


async def test_a_prompt_larger_than_the_pool_is_refused_at_once(nodes: TwoNodes) -> None:
    small = await nodes.bench.start_worker("prefill", "a", max_slots=2)
    reply = await nodes.bench.reserve(small, nodes.bench.new_ref(), prompt(700))
    assert not reply.is_accepted
    assert reply.reason == "needs 3 blocks, this instance may hold 2"
    assert NUM_SLOTS > 3


async def test_when_the_pool_goes_prefill_returns_its_queue_and_attaches_anew(
    nodes: TwoNodes,
) -> None:
    gate = nodes.a.gate("seal")
    waiting = await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    before = nodes.prefill.context.incarnation
    nodes.a.lose()
    await waiting.done()
    assert waiting.error is not None
    assert (waiting.error.code, waiting.error.is_retryable) == (ErrorCode.POOL_LOST, True)
    await until(lambda: nodes.prefill.context.incarnation != before, what="a new incarnation")
    await until(lambda: nodes.prefill.context.state == "ready", what="ready again")
    gate.open.set()
    await nodes.bench.cancel(waiting.ref)
    await until(lambda: nodes.decode.context.state == "ready", what="ready again")
    again = await (
        await nodes.bench.submit(prompt(700), nodes.prefill, nodes.decode, sampling=SHORT)
    ).done()
    assert again.text == reference_answer(prompt(700), SHORT)
    await nodes.nothing_is_held()


async def test_when_the_pool_goes_decode_finishes_from_its_device_cache(nodes: TwoNodes) -> None:
    tokens = prompt(300)
    # Long enough that the loss is seen before the answer is done.
    longest = Sampling(max_tokens=1500, ignore_eos=True)
    answer = await nodes.bench.submit(tokens, nodes.prefill, nodes.far_decode, sampling=longest)
    await until(lambda: len(answer.tokens) > 5, what="some tokens")
    before = nodes.far_decode.context.incarnation
    nodes.b.lose()
    await until(lambda: nodes.far_decode.context.state != "ready", what="it sees the loss")
    refused = await nodes.bench.reserve(nodes.far_decode, nodes.bench.new_ref(), tokens)
    assert not refused.is_accepted
    assert (await answer.done()).text == reference_answer(tokens, longest)
    await until(lambda: nodes.far_decode.context.incarnation != before, what="attached anew")
    await nodes.nothing_is_held()


async def test_draining_finishes_what_runs_and_hands_back_the_rest(nodes: TwoNodes) -> None:
    answer = await nodes.bench.submit(prompt(300), nodes.prefill, nodes.decode, sampling=LONG)
    await until(lambda: len(answer.tokens) > 1, what="some tokens")
    nodes.decode.context.state = "draining"
    await nodes.decode.service.drain()
    assert (await answer.done()).finish_reason == "length"
    gate = nodes.a.gate("seal")
    stuck = await nodes.bench.submit(prompt(700), nodes.prefill, nodes.far_decode)
    async with asyncio.timeout(5):
        await gate.entered.wait()
    nodes.prefill.context.state = "draining"
    nodes.prefill.service._settings = nodes.prefill.service._settings.model_copy(
        update={"drain_timeout_s": 1.1}
    )
    await nodes.prefill.service.drain()
    await stuck.done()
    assert stuck.error is not None
    assert (stuck.error.code, stuck.error.is_retryable) == (ErrorCode.DRAINING, True)
    await nodes.bench.cancel(stuck.ref)
    await nodes.nothing_is_held()
