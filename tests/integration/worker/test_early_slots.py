"""Slots that are asked for while the run is on the way: who gets them, and when they go back."""

import asyncio
from typing import Any

import pytest

from shared.messages.common import Sampling
from tests.support.deadline import until
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import NUM_SLOTS, TwoNodes
from tests.support.worker_bench import Answer

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=4, ignore_eos=True)
NUM_TOKENS = 700
NUM_BLOCKS = 3


def num_writing(nodes: TwoNodes) -> int:
    return nodes.a.pool.counts.writing


async def reserve(nodes: TwoNodes, seed: int) -> None:
    ref = nodes.bench.new_ref(request_id=f"early{seed}")
    tokens = prompt(NUM_TOKENS, seed=seed)
    reply = await nodes.bench.reserve(nodes.prefill, ref, tokens, cache="off")
    assert reply.is_accepted


async def run(nodes: TwoNodes, seed: int) -> Answer:
    """Reserves anew what is not reserved."""
    ref, tokens = nodes.bench.new_ref(request_id=f"early{seed}"), prompt(NUM_TOKENS, seed=seed)
    pair = nodes.prefill, nodes.decode
    return await nodes.bench.submit(tokens, *pair, sampling=SHORT, cache="off", ref=ref)


async def is_right(answer: Answer, seed: int) -> bool:
    return (await answer.done()).text == reference_answer(prompt(NUM_TOKENS, seed=seed), SHORT)


async def test_a_prompt_that_nobody_is_before_has_its_slots_when_its_run_comes(
    nodes: TwoNodes,
) -> None:
    await reserve(nodes, 0)
    await until(lambda: num_writing(nodes) == NUM_BLOCKS, what="it has its slots")
    nodes.a.gate("allocate")  # never opened: nothing more is asked for
    assert await is_right(await run(nodes, 0), 0)
    await nodes.nothing_is_held()


async def test_one_prompt_at_a_time_asks_early(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("allocate")
    await reserve(nodes, 0)
    async with asyncio.timeout(10):
        await gate.entered.wait()
    gate.entered.clear()
    await reserve(nodes, 1)
    gate.open.set()
    await until(lambda: num_writing(nodes) == NUM_BLOCKS, what="the first has its slots")
    assert not gate.entered.is_set()
    assert all([await is_right(await run(nodes, seed), seed) for seed in (1, 0)])
    await nodes.nothing_is_held()


async def test_who_has_to_wait_after_all_gives_its_slots_back(nodes: TwoNodes) -> None:
    await reserve(nodes, 0)
    await until(lambda: num_writing(nodes) == NUM_BLOCKS, what="it has its slots")
    gate = nodes.a.gate("allocate")
    other = await run(nodes, 1)
    async with asyncio.timeout(10):
        await gate.entered.wait()  # it has the turn
    early = await run(nodes, 0)
    await until(lambda: num_writing(nodes) == 0, what="who waits holds none")
    gate.open.set()
    assert await is_right(other, 1)
    assert await is_right(early, 0)
    await nodes.nothing_is_held()


async def test_who_gets_none_early_waits_in_its_turn(nodes: TwoNodes) -> None:
    pool: Any = nodes.a.attach("another", NUM_SLOTS)
    await pool.allocate("other", NUM_SLOTS - NUM_BLOCKS + 1)
    answer = await run(nodes, 0)
    await until(lambda: nodes.a.line._waiters, what="it waits for slots")
    await pool.release("other")
    assert await is_right(answer, 0)
    await nodes.nothing_is_held()


async def test_slots_go_back_when_it_is_cancelled_before_its_run(nodes: TwoNodes) -> None:
    await reserve(nodes, 0)
    await until(lambda: num_writing(nodes) == NUM_BLOCKS, what="it has its slots")
    await nodes.bench.cancel(nodes.bench.new_ref(request_id="early0"), nodes.prefill)
    await nodes.nothing_is_held()
