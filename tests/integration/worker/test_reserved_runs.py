"""Runs that come with the reservation: started once, and only the chosen one counts."""

import asyncio
from typing import Any

import pytest

from shared.messages.common import ErrorCode, RequestRef, Sampling
from shared.messages.decode import HandoffReply
from shared.messages.prefill import ReserveReply
from shared.runtime.errors import ServiceError
from shared.worker import decode_loop, prefill_work
from shared.worker.prefill_loop import PrefillLoop
from tests.support.deadline import until
from tests.support.reference_answers import Tokens, prompt, reference_answer
from tests.support.two_nodes import TwoNodes
from tests.support.worker_bench import Answer, Worker

pytestmark = pytest.mark.integration
SHORT = Sampling(max_tokens=4, ignore_eos=True)
NUM_TOKENS = 300


class Placed:
    """One attempt whose run goes with its reservation, as conductor and gateway do it."""

    def __init__(self, nodes: TwoNodes, seed: int, sampling: Sampling = SHORT) -> None:
        self.nodes, self.bench = nodes, nodes.bench
        self.tokens: Tokens = prompt(NUM_TOKENS, seed=seed)
        self.sampling = sampling
        self.ref: RequestRef = self.bench.new_ref()
        self.answer = Answer(self.ref)
        self._subject = ""

    async def begin(self, prefill: Worker, decode: Worker | None, **more: Any) -> ReserveReply:
        """What the prefill instance said; its run hands over to `decode`."""
        if not self._subject:
            self.answer, self._subject = await self.bench.listen(self.ref)
        return await self.bench.reserve_with_run(
            prefill, self.ref, self.tokens, decode, self._subject, self.sampling, **more
        )

    async def promise(self, decode: Worker, **more: Any) -> None:
        fields = {"max_tokens": self.sampling.max_tokens, **more}
        assert (await self.bench.reserve(decode, self.ref, self.tokens, **fields)).is_accepted

    async def run(self, worker: Worker, prefill: Worker, decode: Worker | None) -> None:
        """As the gateway sends it, to one of the two."""
        fields: dict[str, Any] = {"sampling": self.sampling, "reply_subject": self._subject}
        await self.bench.run_alone(worker, self.tokens, self.ref, prefill, decode, **fields)

    async def check(self) -> None:
        text = (await self.answer.done()).text
        assert self.answer.error is None
        assert text == reference_answer(self.tokens, self.sampling)
        await self.nodes.nothing_is_held()


def computed(worker: Worker) -> int:
    assert isinstance(worker.loop, PrefillLoop)
    return worker.load.computed_tokens_total


async def test_it_is_computed_at_once_and_once_whatever_is_said_again(nodes: TwoNodes) -> None:
    one, pair = Placed(nodes, 0), (nodes.prefill, nodes.decode)
    assert (await one.begin(*pair)).has_run
    assert (await one.begin(*pair)).has_run, "a repeated question"
    await one.run(nodes.prefill, *pair)
    await until(lambda: one.answer.text, what="token 0, before decode knows of it")
    await one.promise(nodes.decode)
    await one.run(nodes.decode, *pair)
    await one.run(nodes.prefill, *pair)
    await one.check()
    assert computed(nodes.prefill) == NUM_TOKENS
    assert {chunk.incarnation for chunk in one.answer.chunks if chunk.stage == "prefill"} == {
        nodes.prefill.context.incarnation
    }


async def test_an_answer_that_ends_with_its_prefill_needs_no_further_word(nodes: TwoNodes) -> None:
    one = Placed(nodes, 1, Sampling(max_tokens=1, ignore_eos=True))
    assert (await one.begin(nodes.prefill, None)).has_run
    await one.check()


@pytest.mark.parametrize("is_refused", [True, False])
async def test_who_takes_it_over_is_whom_the_gateway_names(
    nodes: TwoNodes, is_refused: bool
) -> None:
    """The first one refuses, or never answers and takes no run."""
    one = Placed(nodes, 2)
    if is_refused:
        # It says so to whoever would hand over to it, and does not wait for a run.
        nodes.decode.context.state = "draining"
        fields = {"max_tokens": SHORT.max_tokens}
        refused = await nodes.bench.reserve(nodes.decode, one.ref, one.tokens, **fields)
        assert not refused.is_accepted
        nodes.decode.context.state = "ready"
    assert (await one.begin(nodes.prefill, nodes.decode)).has_run
    await until(lambda: one.answer.text, what="token 0")
    assert not (await one.begin(nodes.prefill, nodes.far_decode)).has_run, "not for that one"
    await one.promise(nodes.far_decode)
    await one.run(nodes.far_decode, nodes.prefill, nodes.far_decode)
    await one.run(nodes.prefill, nodes.prefill, nodes.far_decode)
    await one.check()
    assert computed(nodes.prefill) == NUM_TOKENS


async def test_decode_may_hear_of_it_long_after_it_is_computed(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is busy sends decode its run late: what is computed is not thrown away."""
    monkeypatch.setattr(decode_loop, "RUN_WAIT_S", 0.0)
    monkeypatch.setattr(prefill_work, "MOVE_WAIT_S", 10.0)
    refused: list[ErrorCode] = []
    hand_over = prefill_work.hand_over

    async def note(*arguments: Any) -> HandoffReply:
        try:
            return await hand_over(*arguments)
        except ServiceError as error:
            refused.append(error.code)
            raise

    monkeypatch.setattr(prefill_work, "hand_over", note)
    one, pair = Placed(nodes, 9), (nodes.prefill, nodes.decode)
    assert (await one.begin(*pair)).has_run
    await until(lambda: refused, what="decode knows nothing of it")
    assert {*refused} == {ErrorCode.NOT_RESERVED}
    await one.promise(nodes.decode)
    await one.run(nodes.decode, *pair)
    await one.check()
    assert computed(nodes.prefill) == NUM_TOKENS


async def test_what_one_that_was_not_chosen_computed_reaches_no_decode(nodes: TwoNodes) -> None:
    one = Placed(nodes, 3)
    await one.promise(nodes.decode)
    assert (await one.begin(nodes.far_prefill, nodes.decode)).has_run
    await until(lambda: one.answer.text, what="the loser's token 0")
    loser = nodes.far_prefill.context.incarnation
    assert (await one.begin(nodes.prefill, nodes.decode)).has_run
    await one.run(nodes.decode, nodes.prefill, nodes.decode)
    await until(lambda: nodes.far_prefill.num_attempts == 0, what="the loser is let go")
    ended = [chunk for chunk in one.answer.chunks if chunk.error is not None]
    assert {chunk.incarnation for chunk in ended} <= {loser}, "which its gateway drops"
    await until(
        lambda: one.answer.finish_reason is not None, what="the answer of the one that was chosen"
    )
    own = [c for c in one.answer.chunks if c.incarnation != loser]
    given = {c.index + n: token for c in own for n, token in enumerate(c.tokens)}
    expected = reference_answer(one.tokens, SHORT)
    assert [given[index] for index in sorted(given)] == expected
    await nodes.nothing_is_held()


async def test_one_whose_place_was_never_heard_of_is_ended_by_its_gateway(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("allocate")
    one, other = Placed(nodes, 4), Placed(nodes, 5)
    for each in (one, other):
        assert (await each.begin(nodes.prefill, nodes.decode)).has_run
    async with asyncio.timeout(10):
        await gate.entered.wait()
    nodes.bench.lost_attempts = [one.ref.handle]
    await until(lambda: nodes.prefill.num_attempts == 1, what="it is ended, the other is not")
    nodes.bench.lost_attempts = []
    gate.open.set()
    await other.promise(nodes.decode)
    await other.run(nodes.decode, nodes.prefill, nodes.decode)
    await other.check()
    assert one.answer.chunks == []


async def test_room_promised_to_one_whose_place_was_never_heard_of_is_free_at_once(
    nodes: TwoNodes,
) -> None:
    one, other = Placed(nodes, 8), Placed(nodes, 9)
    for each in (one, other):
        await each.promise(nodes.decode, ttl_ms=60_000)
    nodes.bench.lost_attempts = [one.ref.handle]
    await until(lambda: nodes.decode.load.queued_requests == 1, what="the other's is left")
    nodes.bench.lost_attempts = []
    assert (await other.begin(nodes.prefill, nodes.decode)).has_run
    await other.run(nodes.decode, nodes.prefill, nodes.decode)
    await other.check()


async def test_a_release_ends_what_began(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("allocate")
    one = Placed(nodes, 6)
    assert (await one.begin(nodes.prefill, nodes.decode)).has_run
    async with asyncio.timeout(10):
        await gate.entered.wait()
    await nodes.bench.cancel(one.ref, nodes.prefill)
    gate.open.set()
    await nodes.nothing_is_held()
    assert one.answer.chunks == []
    assert computed(nodes.prefill) == 0


async def test_a_run_that_cannot_be_served_leaves_a_plain_reservation(nodes: TwoNodes) -> None:
    one = Placed(nodes, 7)
    one.answer, one._subject = await nodes.bench.listen(one.ref)
    for run in (b"no message", b"\x81\xa5model\xa1m"):
        reply = await nodes.bench.reserve(nodes.prefill, one.ref, one.tokens, run=run)
        assert reply.is_accepted
        assert not reply.has_run
    await one.promise(nodes.decode)
    await one.run(nodes.prefill, nodes.prefill, nodes.decode)
    await one.run(nodes.decode, nodes.prefill, nodes.decode)
    await one.check()


async def test_its_promise_lasts_like_that_of_any_run(nodes: TwoNodes) -> None:
    gate = nodes.a.gate("allocate")
    one = Placed(nodes, 8)
    assert (await one.begin(nodes.prefill, nodes.decode, ttl_ms=1)).has_run
    async with asyncio.timeout(10):
        await gate.entered.wait()
    assert isinstance(nodes.prefill.loop, PrefillLoop)
    nodes.prefill.loop.expire(float("inf"))
    gate.open.set()
    await one.promise(nodes.decode)
    await one.run(nodes.decode, nodes.prefill, nodes.decode)
    await one.check()
