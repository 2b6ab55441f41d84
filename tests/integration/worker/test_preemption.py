"""More answers than the device cache can hold: they take turns, and no token is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shared.messages.common import ErrorCode, Sampling
from shared.runtime.errors import ServiceError
from shared.worker.decode_batch import DecodeBatch
from shared.worker.decode_cache import DecodeCache, Prepared
from shared.worker.decode_job import DecodeJob
from shared.worker.decode_loop import DecodeLoop
from tests.support.deadline import until
from tests.support.reference_answers import prompt, reference_answer
from tests.support.two_nodes import TwoNodes
from tests.support.worker_bench import Answer, Worker

pytestmark = pytest.mark.integration
LONG = Sampling(max_tokens=400, ignore_eos=True)
CAPACITY = 1_000
NUM_REQUESTS = 4


async def start_small(nodes: TwoNodes, node: str = "a", **settings: Any) -> Worker:
    """A decode instance whose cache holds two of the requests when they have become long."""
    return await nodes.bench.start_worker(
        "decode", node, **{"decode_tokens": CAPACITY, "admit_tokens": 16, **settings}
    )


def cache_of(worker: Worker) -> DecodeCache:
    assert isinstance(worker.loop, DecodeLoop)
    return worker.loop._work.cache


@contextmanager
def together(nodes: TwoNodes) -> Iterator[None]:
    """No prompt computes until all are admitted."""
    gates = [node.gate("allocate") for node in (nodes.a, nodes.b)]
    yield
    for gate in gates:
        gate.open.set()


def check_whole(answer: Answer, expected: list[int]) -> None:
    """Each token once, and the right one."""
    assert answer.error is None
    assert sum(len(chunk.tokens) for chunk in answer.chunks) == len(expected)
    assert answer.text == expected


async def test_long_answers_take_turns_in_a_small_cache_and_all_are_right(nodes: TwoNodes) -> None:
    decode = await start_small(nodes)
    sampled = Sampling(
        max_tokens=400, ignore_eos=True, temperature=0.9, seed=5, frequency_penalty=0.3
    )
    samplings = [LONG, sampled, LONG, sampled]
    prompts = [prompt(150 + 10 * number, seed=number) for number in range(NUM_REQUESTS)]
    expected = [
        reference_answer(tokens, sampling)
        for tokens, sampling in zip(prompts, samplings, strict=True)
    ]
    with together(nodes):
        answers = [
            await nodes.bench.submit(
                tokens, (nodes.prefill, nodes.far_prefill)[number % 2], decode, sampling=sampling
            )
            for number, (tokens, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
    for answer, tokens in zip(answers, expected, strict=True):
        check_whole(await answer.done(60), tokens)
    assert decode.load.preemptions_total > 0
    times = [answer.chunks[-1].times for answer in answers]
    told = [(one.preemptions, one.preempted_s) for one in times if one is not None]
    assert sum(count for count, _ in told) == decode.load.preemptions_total
    assert (0, 0.0) in told  # the first to arrive never
    assert all((count > 0) == (seconds > 0) for count, seconds in told)
    await nodes.nothing_is_held()
    assert (decode.load.preempted, decode.load.saved_tokens) == (0, 0)


async def test_put_out_at_every_position_an_answer_goes_on_the_same(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_out_before_every_step(nodes, monkeypatch)


async def test_put_out_at_every_position_in_bf16_it_goes_on_the_same(
    bf16_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_out_before_every_step(bf16_nodes, monkeypatch)


async def put_out_before_every_step(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while tokens that are given already are fed."""
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=3, top_logprobs=2, ignore_eos=True)
    tokens = prompt(300, seed=1)
    expected = reference_answer(tokens, sampling, nodes.bench.format)
    whole = DecodeBatch._with_room
    positions: list[int] = []

    async def put_out_first(batch: DecodeBatch) -> Any:
        for handle, sequence in list(batch._sequences.items()):
            if sequence.position not in positions:
                positions.append(sequence.position)
                need = sequence.position + 1
                prepared = Prepared()
                await batch._cache._put_out(handle, need, prepared)
                assert prepared.put_out == [handle]
                batch.leave(handle)
                sequence.put_out(0.0)
                batch._cache._let_in()
        return await whole(batch)

    monkeypatch.setattr(DecodeBatch, "_with_room", put_out_first)
    for num_given in (0, 5):
        positions.clear()
        answer = await nodes.bench.submit(
            tokens, nodes.prefill, nodes.decode, sampling=sampling, given=expected[:num_given]
        )
        await answer.done()
        assert answer.error is None
        assert answer.tokens == dict(enumerate(expected[num_given:], start=num_given))
        assert positions == list(range(300, 300 + 11))
        assert all(len(chunk.logprobs) == len(chunk.tokens) for chunk in answer.chunks)
        await nodes.nothing_is_held()


async def fill(nodes: TwoNodes, decode: Worker) -> list[Answer]:
    """Requests that do not fit together for long; some are put out when this returns."""
    with together(nodes):
        answers = [
            await nodes.bench.submit(
                prompt(150, seed=seed), nodes.prefill, decode, sampling=LONG, remaining_ms=60_000
            )
            for seed in range(NUM_REQUESTS)
        ]

    def is_full() -> bool:
        jobs = decode.loop.attempts.all()
        has_all = all(isinstance(job, DecodeJob) and job.reply is not None for job in jobs)
        return has_all and decode.load.preempted > 0

    await until(is_full, what="all have come and somebody is put out")
    return answers


async def test_cancelled_while_put_out_everything_is_freed_and_the_others_go_on(
    nodes: TwoNodes,
) -> None:
    decode = await start_small(nodes)
    answers = await fill(nodes, decode)
    victim = answers[-1]
    assert not cache_of(decode)._rooms.room(victim.ref.handle)
    await nodes.bench.cancel(victim.ref, decode, nodes.prefill)
    await until(lambda: victim.ref.handle not in cache_of(decode)._rooms, what="it is gone")
    assert victim.ref.handle not in cache_of(decode)._saved
    for answer, seed in zip(answers[:-1], range(NUM_REQUESTS), strict=False):
        check_whole(await answer.done(60), reference_answer(prompt(150, seed=seed), LONG))
    assert victim.error is None
    await nodes.nothing_is_held()


@pytest.mark.parametrize("operation", ["_take_out", "_add"])
async def test_cancelled_while_its_kv_moves_everything_is_freed(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The copy is in the compute thread when the request is cancelled."""
    decode = await start_small(nodes)
    whole = getattr(DecodeCache, operation)
    moving = asyncio.Event()
    moved: list[str] = []
    loop = asyncio.get_running_loop()

    def and_cancel(cache: DecodeCache, handle: str, *rest: Any) -> Any:
        if cache is cache_of(decode) and not moved and cache.preemptions_total:
            moved.append(handle)
            loop.call_soon_threadsafe(decode.loop.attempts.cancel, handle)
            loop.call_soon_threadsafe(moving.set)
        return whole(cache, handle, *rest)

    monkeypatch.setattr(DecodeCache, operation, and_cancel)
    answers = await fill(nodes, decode)
    async with asyncio.timeout(30):
        await moving.wait()
    await nodes.bench.cancel(next(one.ref for one in answers if one.ref.handle == moved[0]))
    rest = [(seed, one) for seed, one in enumerate(answers) if one.ref.handle != moved[0]]
    for seed, answer in rest:
        check_whole(await answer.done(60), reference_answer(prompt(150, seed=seed), LONG))
    await nodes.nothing_is_held()
    assert decode.load.saved_tokens == 0


async def test_without_host_memory_the_youngest_go_on_elsewhere(nodes: TwoNodes) -> None:
    decode = await start_small(nodes, saved_tokens=0)
    expected = [reference_answer(prompt(150, seed=seed), LONG) for seed in range(NUM_REQUESTS)]
    with together(nodes):
        answers = [
            await nodes.bench.submit(prompt(150, seed=seed), nodes.prefill, decode, sampling=LONG)
            for seed in range(NUM_REQUESTS)
        ]
    for answer in answers:
        await answer.done(60)
    handed_back = [number for number, one in enumerate(answers) if one.error is not None]
    assert 0 < len(handed_back) < NUM_REQUESTS
    for number in set(range(NUM_REQUESTS)) - set(handed_back):
        check_whole(answers[number], expected[number])
    assert decode.load.preemptions_total > 0
    for number in handed_back:
        error = answers[number].error
        assert error is not None
        assert (error.code, error.is_retryable) == (ErrorCode.OVERLOADED, True)
        given = answers[number].text
        assert given == expected[number][: len(given)]
        again = await nodes.bench.submit(
            prompt(150, seed=number),
            nodes.far_prefill,
            nodes.far_decode,
            sampling=LONG,
            given=given,
            ref=nodes.bench.new_ref(1, answers[number].ref.request_id),
        )
        await again.done(60)
        assert given + again.text == expected[number]
    await nodes.nothing_is_held()


async def test_what_is_admitted_counts_with_what_it_needs_soon(nodes: TwoNodes) -> None:
    decode = await start_small(nodes)
    tokens = prompt(150)
    reserve = nodes.bench.reserve
    for number in range(6):
        reply = await reserve(decode, nodes.bench.new_ref(), tokens, max_tokens=800)
        assert reply.is_accepted == (number < 6 and 166 * (number + 1) <= CAPACITY)
    assert decode.load.free_tokens == CAPACITY - 6 * 166
    reply = await reserve(decode, nodes.bench.new_ref(), tokens, max_tokens=851)
    assert not reply.is_accepted
    assert reply.reason == "may need room for 1001 tokens, there is 1000 in all"
    await until(lambda: decode.load.free_tokens == CAPACITY, what="expiry")


async def test_when_the_pool_goes_those_that_are_put_out_finish_too(nodes: TwoNodes) -> None:
    decode = await start_small(nodes, "b")
    answers = await fill(nodes, decode)
    nodes.b.lose()
    for seed, answer in enumerate(answers):
        check_whole(await answer.done(60), reference_answer(prompt(150, seed=seed), LONG))
    await until(lambda: decode.context.state == "ready", what="attached anew")
    await nodes.nothing_is_held()


async def test_a_run_that_wants_more_than_there_is_leaves_its_reservation_to_expire(
    nodes: TwoNodes,
) -> None:
    decode, tokens = await start_small(nodes), prompt(150)
    ref = nodes.bench.new_ref()
    assert (await nodes.bench.reserve(decode, ref, tokens, ttl_ms=300)).is_accepted
    longest = Sampling(max_tokens=CAPACITY, ignore_eos=True)
    with pytest.raises(ServiceError, match="more than was reserved"):
        await nodes.bench.run_alone(decode, tokens, ref, nodes.prefill, decode, sampling=longest)
    await until(
        lambda: decode.load.free_tokens == CAPACITY,
        timeout_s=5,
        what="the room that was reserved is free",
    )
