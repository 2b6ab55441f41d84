"""A long prompt and short ones at one prefill: whose chunk is computed when. Orders, not times."""

import threading
from typing import Any

import pytest

from shared.engine.prefill import PrefillEngine
from shared.messages.common import Sampling
from shared.worker.prefill_loop import PrefillLoop
from shared.worker.prefill_queue import PrefillQueue
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import TwoNodes
from tests.support.worker_bench import Answer, Worker

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=4, ignore_eos=True)
LONG_TOKENS = 1_800
NUM_CHUNKS = 8
Chunks = list[tuple[int, int]]
"""(tokens of the prompt, start of the chunk), as they were computed."""


@pytest.fixture
def chunks(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> Chunks:
    """Which prompt each chunk belongs to is told by its tokens."""
    done: Chunks = []
    whole = PrefillEngine.prefill_chunk

    def noted(self: PrefillEngine, tokens: Any, start: int, *rest: Any, **more: Any) -> Any:
        if threading.current_thread().name.startswith("compute"):  # not the reference
            done.append((int(tokens[0]), start))
        return whole(self, tokens, start, *rest, **more)

    monkeypatch.setattr(PrefillEngine, "prefill_chunk", noted)
    # What chunks take on a machine that others load would change who counts as short.
    monkeypatch.setattr(PrefillQueue, "learn", lambda _: None)
    return done


def queue_of(worker: Worker) -> PrefillQueue:
    assert isinstance(worker.loop, PrefillLoop)
    return worker.loop._queue


async def submit_in_a_row(nodes: TwoNodes, lengths: list[int]) -> list[Answer]:
    """All are in the queue before the first computes; they arrive in this order."""
    gate = nodes.a.gate("allocate")
    answers = [
        await nodes.bench.submit(
            prompt(length, seed=seed), nodes.prefill, nodes.decode, sampling=SHORT
        )
        for seed, length in enumerate(lengths)
    ]
    gate.open.set()
    for seed, (answer, length) in enumerate(zip(answers, lengths, strict=True)):
        assert (await answer.done()).text == reference_answer(prompt(length, seed=seed), SHORT)
    return answers


def own(chunks: Chunks, length: int, seed: int) -> list[int]:
    """When the chunks of this prompt were computed; each start of each prompt has its token."""
    tokens = prompt(length, seed=seed)
    mine = {(int(tokens[start]), start) for start in range(0, length, 256)}
    return [at for at, chunk in enumerate(chunks) if chunk in mine]


async def test_short_prompts_wait_for_one_chunk_of_a_long_one(
    nodes: TwoNodes, chunks: Chunks
) -> None:
    """The one goes first that would be done first if each had been alone since it came."""
    lengths = [LONG_TOKENS, 200, 100, 50]
    await submit_in_a_row(nodes, lengths)
    long = own(chunks, LONG_TOKENS, 0)
    shorts = [own(chunks, length, seed) for seed, length in enumerate(lengths) if seed]
    assert len(long) == NUM_CHUNKS
    # The long one was alone when it came and has the turn; at its end all the short ones follow.
    assert long[0] == 0
    assert sorted(at for short in shorts for at in short) == [1, 2, 3]
    assert long[1:] == list(range(4, 4 + NUM_CHUNKS - 1))
    await nodes.nothing_is_held()


async def test_a_short_prompt_that_comes_in_the_middle_is_the_next(
    nodes: TwoNodes, chunks: Chunks
) -> None:
    gate = nodes.a.gate("seal")  # after the first chunk of the long one
    long = await nodes.bench.submit(
        prompt(LONG_TOKENS), nodes.prefill, nodes.decode, sampling=SHORT
    )
    await gate.entered.wait()
    num_before = len(chunks)
    short = await nodes.bench.submit(
        prompt(90, seed=1), nodes.prefill, nodes.decode, sampling=SHORT
    )
    gate.open.set()
    await short.done()
    await long.done()
    assert num_before == 1
    assert own(chunks, 90, 1)[0] <= num_before + 1  # at most the chunk that had begun
    assert len(own(chunks, LONG_TOKENS, 0)) == NUM_CHUNKS
    assert long.text == reference_answer(prompt(LONG_TOKENS), SHORT)
    await nodes.nothing_is_held()


async def test_a_long_prompt_whose_own_time_is_over_is_not_passed_any_more(
    nodes: TwoNodes, chunks: Chunks
) -> None:
    gate = nodes.a.gate("seal")
    submit = nodes.bench.submit
    long = await submit(prompt(LONG_TOKENS), nodes.prefill, nodes.decode, sampling=SHORT)
    await gate.entered.wait()
    queue_of(nodes.prefill)._entries[long.ref.handle].arrived_s -= 1_000.0  # it came long ago
    shorts = [
        await submit(prompt(60, seed=seed), nodes.prefill, nodes.decode, sampling=SHORT)
        for seed in (1, 2)
    ]
    early = [at for seed in (1, 2) for at in own(chunks, 60, seed)]
    gate.open.set()
    for answer in (long, *shorts):
        await answer.done()
    mine = own(chunks, LONG_TOKENS, 0)
    late = [at for seed in (1, 2) for at in own(chunks, 60, seed) if at not in early]
    assert len(mine) == NUM_CHUNKS
    # While the long one seals a chunk the turn is free: one short prompt may have begun.
    assert len(early) <= 2
    assert all(at > mine[-1] for at in late)
    await nodes.nothing_is_held()
