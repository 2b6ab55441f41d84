"""What a conductor learns from a bill, and what it asks of instances."""

from dataclasses import replace

import pytest

from services.conductor import convert
from shared.messages.bill import FinishedBill, Reuse, Times
from shared.messages.common import CacheMode, InstanceRef, RequestRef
from shared.messages.conductor import PlaceRequest
from shared.messages.index import MatchReply
from shared.scheduling.effects import SendReserve
from shared.scheduling.vocabulary import PlacementDecision
from tests.support.placing import Driven, instance, match, request

PREFILL = InstanceRef(id="p", incarnation="p-1", node="n")
DECODE = InstanceRef(id="d", incarnation="d-1", node="n")
PREDICTED = Times(compute_s=2.0, ttft_s=2.0, tbt_s=0.1)


def bill(decode: InstanceRef | None, **real: float) -> FinishedBill:
    return FinishedBill(
        request_id="r",
        model="m",
        prefill=PREFILL,
        decode=decode,
        predicted=PREDICTED,
        real=Times(**real),
        reuse=Reuse(prompt_tokens=500),
    )


def test_what_a_prompts_log_probabilities_took_is_not_learnt() -> None:
    """No other request of that length takes it, and nobody predicted it."""
    scored = bill(DECODE, compute_s=3.0, score_s=1.0, ttft_s=3.5, overhead_s=0.5)
    plain = bill(DECODE, compute_s=2.0, ttft_s=2.5, overhead_s=0.5)
    learnt = convert.bill_of(scored)
    assert learnt == convert.bill_of(plain)
    assert learnt.compute_s == 2.0
    assert convert.outcomes_of(scored, 2.0) == convert.outcomes_of(plain, 2.0)


def test_a_request_without_decode_says_nothing_of_any() -> None:
    (prefill,) = convert.outcomes_of(bill(None, compute_s=2.0), 2.0)
    assert (prefill.service, prefill.party) == ("prefill", ("p", "p-1"))
    assert len(convert.outcomes_of(bill(DECODE, compute_s=2.0), 2.0)) == 2


@pytest.mark.parametrize(
    ("cache", "reads", "publishes"),
    [("on", True, True), ("write", False, True), ("off", False, False)],
)
def test_the_instance_hears_what_the_cache_is_for(
    cache: CacheMode, reads: bool, publishes: bool
) -> None:
    asked = PlaceRequest(
        ref=RequestRef(request_id="r", gateway="g", gateway_incarnation="g-1"),
        model="m",
        num_tokens=500,
        max_tokens=0,
        cache=cache,
    )
    request = convert.request_of(asked, MatchReply())
    assert (request.use_cache, request.publishes, request.needs_decode) == (reads, publishes, False)
    insisting = asked.model_copy(update={"max_tokens": 1, "decode": "d"})
    assert convert.request_of(insisting, MatchReply()).needs_decode
    effect = SendReserve(
        place_id=1,
        role="prefill",
        instance=("p", "p-1"),
        request=request,
        cached_tokens=0,
        sources=(),
        ttl_s=2.0,
        reason="",
    )
    reserve = convert.reserve_of(effect, "")
    assert (reserve.cache, reserve.max_tokens, reserve.judged_tbt_ms) == (cache, 0, None)
    assert convert.reserve_of(effect, "", b"run").run == b"run"
    # Decode is asked before token 0: whom an early run names may not have promised anything yet.
    judged = convert.reserve_of(replace(effect, judged_tbt_s=0.05), "", b"run")
    assert (judged.judged_tbt_ms, judged.run) == (50.0, b"")


def test_the_answer_says_where_cached_tokens_come_from_and_what_they_cost() -> None:
    """16 of the 40 blocks are here; of 639 tokens a grid of 32 reuses 608."""
    driven = Driven([instance("prefill", "p1", "n1"), instance("prefill", "p2", "n2")])
    asked = request(639, needs_decode=False, prefill="p1")
    decided = driven.core.explain(asked, (match("n1", 16), match("n2", 39)), 0.0)
    assert isinstance(decided, PlacementDecision)
    placement = convert.placed_reply(decided).placement
    assert placement is not None
    assert (placement.local_tokens, placement.remote_tokens) == (256, 352)
    assert placement.cost == decided.winner.cost_s > 0
    alone = driven.core.explain(request(512, needs_decode=False), (match("n1", 32),), 0.0)
    assert isinstance(alone, PlacementDecision)
    reply = convert.placed_reply(alone)
    assert reply.placement is not None
    # The last chunk is computed, though it is here.
    assert (reply.placement.local_tokens, reply.placement.remote_tokens) == (480, 0)
    [loser] = reply.losers
    assert loser.local_tokens == 0
    assert loser.local_tokens + loser.remote_tokens == alone.losers[0].cached_tokens
    assert loser.cost == alone.losers[0].cost_s
