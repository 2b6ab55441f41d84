"""Ours: what it fetches, from whom, how far, whom it spares, and how it spreads."""

import random
from collections import Counter
from typing import Any

import pytest

from shared.scheduling.cost_model import CostProfile, PrefillCoefficients
from shared.scheduling.effects import AnswerPlaced
from shared.scheduling.events import InstanceReported, NodeReported
from shared.scheduling.policies import registry
from shared.scheduling.pricing import Prices, Situation, cheapest_first, price_local
from shared.scheduling.queue_discipline import ShortestFirst, Waiting
from shared.scheduling.vocabulary import (
    Candidate,
    ExpectedPrefix,
    InstanceView,
    NodeMatch,
    PlacementDecision,
)
from tests.support.placing import BLOCK_BYTES, BLOCK_TOKENS, Driven, instance, match, request

COMPUTE = PrefillCoefficients(0.0, 1.0, 0.0)
"""1 s for 1,024 tokens: a block of 16 tokens takes 15.6 ms."""
BLOCK_S = BLOCK_TOKENS / 1_024


def profile(block_transfer_s: float) -> CostProfile:
    return CostProfile(
        prefill=COMPUTE,
        transfer_bytes_per_s=BLOCK_BYTES / block_transfer_s,
        transfer_base_s=0.0,
        disk_bytes_per_s=BLOCK_BYTES / 0.01,
    )


def place(instances: list[InstanceView], *matches: NodeMatch, **settings: Any) -> Candidate:
    settings = {"profile": profile(BLOCK_S / 10), "policy": "moonpool"} | settings
    answer = Driven([*instances, instance("decode", "d", "n9")], **settings).place(
        request(1_024), *matches
    )
    assert isinstance(answer, AnswerPlaced)
    return answer.decision.winner


def sorted_queue(*sizes_s: float) -> dict[str, Any]:
    queue = [Waiting(str(n), size_s, 0.0) for n, size_s in enumerate(sizes_s)]
    found = ShortestFirst(ageing=0.0).profile(queue, 0.0)
    return {
        "discipline": "shortest_first",
        "work_by_size_s": found.work_s,
        "prompts_by_size": found.prompts,
        "expected_start_s": sum(sizes_s),
    }


def test_it_fetches_when_the_holder_is_busy_and_counts_only_the_longer_of_queue_and_load() -> None:
    busy = instance("prefill", "p1", "n1", expected_start_s=9.0)
    idle = instance("prefill", "p2", "n2", expected_start_s=0.2)
    winner = place([busy, idle], match("n1", 60))
    assert winner.prefill.id == "p2"
    assert winner.source is not None
    assert (winner.source.node, winner.source.num_blocks) == ("n1", 60)
    assert winner.predicted.load_s == pytest.approx(60 * BLOCK_S / 10)
    assert winner.cost_s == pytest.approx(0.2 + 64 * BLOCK_S - 60 * BLOCK_S)


def test_over_a_slow_link_it_fetches_what_the_queue_hides_and_recomputes_the_rest() -> None:
    """A block takes twice as long to move as to compute."""
    busy = instance("prefill", "p1", "n1", expected_start_s=9.0)
    queued = instance("prefill", "p2", "n2", expected_start_s=0.5)
    winner = place([busy, queued], match("n1", 60), profile=profile(BLOCK_S * 2))
    assert winner.prefill.id == "p2"
    # 0.5 s hide 16 blocks: a whole number of grid chunks (of two blocks).
    assert winner.cached_tokens == 16 * BLOCK_TOKENS
    assert winner.source is not None
    assert winner.source.num_blocks == 16
    assert winner.predicted.load_s <= 0.5


def test_over_a_link_slower_than_compute_an_idle_instance_computes_all() -> None:
    busy = instance("prefill", "p1", "n1", expected_start_s=9.0)
    idle = instance("prefill", "p2", "n2")
    winner = place([busy, idle], match("n1", 60), profile=profile(BLOCK_S * 2))
    assert (winner.prefill.id, winner.cached_tokens, winner.source) == ("p2", 0, None)


def test_a_congested_sender_is_left_for_another_or_for_a_shorter_prefix() -> None:
    instances = [
        instance("prefill", "p1", "n1", expected_start_s=9.0),
        instance("prefill", "p2", "n2", expected_start_s=9.0),
        instance("prefill", "p3", "n3"),
        instance("decode", "d", "n9"),
    ]
    driven = Driven(instances, policy="moonpool", profile=profile(BLOCK_S / 10))

    def fetched_from(*matches: NodeMatch) -> tuple[str, int]:
        answer = driven.core.explain(request(1_024), matches, driven.now_s)
        source = answer.winner.source  # type: ignore[union-attr]
        assert source is not None
        return source.node, source.num_blocks

    driven.feed(NodeReported(("n1", "n1-1"), 2_000 * BLOCK_BYTES))
    assert fetched_from(match("n1", 60), match("n2", 60)) == ("n2", 60)
    assert fetched_from(match("n1", 60), match("n2", 40)) == ("n2", 40)
    driven.now_s = 2_000 * BLOCK_S / 10
    for one in instances:
        driven.feed(InstanceReported(one))
    assert fetched_from(match("n1", 60), match("n2", 40)) == ("n1", 60)


def test_own_fetches_count_as_congestion_before_any_report() -> None:
    instances = [
        instance("prefill", f"p{n}", f"n{n}", expected_start_s=9.0 if n < 2 else 0.0)
        for n in range(6)
    ]
    driven = Driven(
        [*instances, instance("decode", "d", "n9")], policy="moonpool", profile=profile(BLOCK_S / 4)
    )
    holders = [match("n0", 60), match("n1", 60)]
    senders = Counter[str]()
    for _ in range(4):
        answer = driven.place(request(1_024), *holders)
        assert isinstance(answer, AnswerPlaced)
        source = answer.decision.winner.source
        senders[source.node if source else "none"] += 1
    assert senders["n0"] == senders["n1"] == 2


def test_striped_over_several_holders_a_fetch_is_bound_by_the_slower_of_both_ends() -> None:
    instances = [
        *(instance("prefill", f"p{n}", f"n{n}", expected_start_s=9.0) for n in range(3)),
        instance("prefill", "p3", "n3"),
        instance("decode", "d", "n9"),
    ]
    holders = [match(f"n{n}", 60) for n in range(3)]
    driven = Driven(instances, policy="moonpool", profile=profile(BLOCK_S / 10), max_sources=2)
    for n in range(3):
        driven.feed(NodeReported((f"n{n}", f"n{n}-1"), (100 + 100 * n) * BLOCK_BYTES))
    winner = driven.core.explain(request(1_024), holders, 0.0).winner  # type: ignore[union-attr]
    assert [source.node for source in winner.sources] == ["n0", "n1"]
    # Two senders share 60 blocks behind 100 and 200: 360 blocks by two links.
    assert winner.predicted.load_s == pytest.approx(180 * BLOCK_S / 10)


def test_a_prefix_on_the_own_disk_costs_its_reading() -> None:
    on_disk = NodeMatch("n1", "n1-1", 60, disk_blocks=50)
    winner = place([instance("prefill", "p1", "n1")], on_disk)
    assert winner.predicted.load_s == pytest.approx(50 * 0.01)


def test_a_short_prompt_waits_only_behind_what_its_instance_would_do_first() -> None:
    """The long queue of the first is of long prompts; the short one of the second is not."""
    long = instance("prefill", "p1", "n1", **sorted_queue(20.0, 20.0))
    short = instance("prefill", "p2", "n2", **sorted_queue(*[0.5] * 10))
    winner = place([long, short])
    assert winner.prefill.id == "p1"
    assert winner.predicted.queue_s == 0.0


def test_of_two_that_would_serve_it_at_once_it_takes_the_one_where_fewer_lose() -> None:
    crowded = instance("prefill", "p1", "n1", **sorted_queue(5.0, 5.0, 5.0))
    calm = instance("prefill", "p2", "n2", **sorted_queue(15.0))
    for seed in range(4):
        assert place([crowded, calm], seed=seed).prefill.id == "p2"


class LongestMatch:
    """The counter-example: cache above all, load never looked at."""

    name = "longest_match"

    def rank(self, situation: Situation) -> Prices:
        prices = price_local(situation)
        return cheapest_first(prices, -prices.cached_tokens.astype(float))


def load_of_nodes(policy: str, *, num_nodes: int = 8, num_turns: int = 480) -> list[float]:
    """Computed seconds by node: sessions that all begin with one same grid chunk, and grow."""
    rng = random.Random(5)
    driven = Driven(
        [instance("decode", "d", "n99")], policy=policy, profile=profile(BLOCK_S / 20), seed=3
    )
    held: list[set[tuple[int, int]]] = [set() for _ in range(num_nodes)]
    backlog_s, load_s = [0.0] * num_nodes, [0.0] * num_nodes
    lengths = [0] * 40
    for _ in range(num_turns):
        driven.now_s += 0.05
        backlog_s = [max(0.0, one - 0.05) for one in backlog_s]
        driven.feed(InstanceReported(instance("decode", "d", "n99")))
        for n in range(num_nodes):
            view = instance("prefill", f"p{n}", f"n{n}", expected_start_s=backlog_s[n])
            driven.feed(InstanceReported(view))
        session = rng.randrange(len(lengths))
        lengths[session] = min(lengths[session] + rng.randrange(4, 40), 400)
        blocks = [(0 if i < 2 else session, i) for i in range(lengths[session])]
        matches = []
        for n in range(num_nodes):
            depth = next((i for i, b in enumerate(blocks) if b not in held[n]), len(blocks))
            if depth:
                matches.append(match(f"n{n}", depth))
        answer = driven.place(request(len(blocks) * BLOCK_TOKENS + 1), *matches)
        assert isinstance(answer, AnswerPlaced)
        winner = answer.decision.winner
        node = int(winner.prefill.id[1:])
        held[node].update(blocks)
        backlog_s[node] += winner.predicted.compute_s
        load_s[node] += winner.predicted.compute_s
    return load_s


def test_a_common_first_block_does_not_send_all_to_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry.POLICIES, "longest_match", LongestMatch)
    collapsed = load_of_nodes("longest_match")
    assert max(collapsed) == pytest.approx(sum(collapsed))
    ours = load_of_nodes("moonpool")
    assert max(ours) <= 1.3 * sum(ours) / len(ours)


def test_dynamos_formula_weighs_waiting_blocks_against_cached_ones() -> None:
    def winner(queued_tokens: int, *matches: NodeMatch) -> str:
        instances = [
            instance("prefill", "p1", "n1", queued_tokens=queued_tokens),
            instance("prefill", "p2", "n2"),
        ]
        return place(instances, *matches, policy="dynamo_cost").prefill.id

    assert winner(39 * BLOCK_TOKENS, match("n1", 40)) == "p1"
    assert winner(41 * BLOCK_TOKENS, match("n1", 40)) == "p2"
    assert winner(31 * BLOCK_TOKENS, NodeMatch("n1", "n1-1", 40, disk_blocks=40)) == "p2"


def test_dynamos_formula_counts_blocks_and_says_so() -> None:
    busy = instance("prefill", "p1", "n1", queued_tokens=2 * BLOCK_TOKENS)
    driven = Driven([busy, instance("prefill", "p2", "n2")], policy="dynamo_cost")
    asked = request(10 * BLOCK_TOKENS, needs_decode=False)
    explained = driven.core.explain(asked, (), 0.0)
    assert isinstance(explained, PlacementDecision)
    [loser] = explained.losers
    assert loser.reason == "cost 12.000 blocks, the winner's 10.000 blocks"


def test_a_sender_that_reads_from_its_disk_first_takes_that_much_longer() -> None:
    busy = instance("prefill", "p1", "n1", expected_start_s=9.0)
    idle = instance("prefill", "p2", "n2", expected_start_s=0.2)
    winner = place([busy, idle], NodeMatch("n1", "n1-1", 60, disk_blocks=20))
    assert winner.prefill.id == "p2"
    assert winner.predicted.load_s == pytest.approx(20 * 0.01 + 60 * BLOCK_S / 10)


def expected(name: str, num_blocks: int, eta_s: float) -> ExpectedPrefix:
    return ExpectedPrefix((name, f"{name}-1"), num_blocks, eta_s)


def place_expecting(
    instances: list[InstanceView], *expectations: ExpectedPrefix, use_cache: bool = True
) -> Candidate:
    asked = request(1_024, expected=expectations, use_cache=use_cache)
    answer = Driven(
        [*instances, instance("decode", "d", "n9")], profile=profile(BLOCK_S), policy="moonpool"
    ).place(asked)
    assert isinstance(answer, AnswerPlaced)
    return answer.decision.winner


def test_a_sibling_waits_where_its_prefix_is_being_computed_when_that_is_sooner() -> None:
    computing = instance("prefill", "p1", "n1", expected_start_s=0.5)
    idle = instance("prefill", "p2", "n2", expected_start_s=0.0)
    winner = place_expecting([computing, idle], expected("p1", 60, 0.5))
    assert winner.prefill.id == "p1"
    assert winner.source is None
    assert winner.cached_tokens == 60 * BLOCK_TOKENS
    assert winner.cost_s == pytest.approx(0.5 + 4 * BLOCK_S)


@pytest.mark.parametrize("eta_s", [0.9, 0.95, 5.0])
def test_a_sibling_goes_elsewhere_when_waiting_takes_longer(eta_s: float) -> None:
    computing = instance("prefill", "p1", "n1", expected_start_s=0.5)
    idle = instance("prefill", "p2", "n2", expected_start_s=0.0)
    is_sooner = eta_s + 4 * BLOCK_S < 64 * BLOCK_S
    winner = place_expecting([computing, idle], expected("p1", 60, eta_s))
    assert winner.prefill.id == ("p1" if is_sooner else "p2")


def test_expected_blocks_are_at_hand_for_their_instance_only_and_for_who_uses_the_cache() -> None:
    computing = instance("prefill", "p1", "n1", expected_start_s=0.5)
    beside = instance("prefill", "p2", "n1", expected_start_s=0.0)
    winner = place_expecting([beside], expected("p1", 60, 0.1))
    assert (winner.prefill.id, winner.cached_tokens) == ("p2", 0)
    winner = place_expecting([computing, beside], expected("p1", 60, 0.1), use_cache=False)
    assert (winner.prefill.id, winner.cached_tokens) == ("p2", 0)
