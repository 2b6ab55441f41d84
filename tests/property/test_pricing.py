"""Prices by column are those of a plain loop over instances, and the best of them are found."""

import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.scheduling import situation as situation_module
from shared.scheduling.cluster_view import ClusterView, Promise
from shared.scheduling.cost_model import CostModel, CostProfile, PrefillCoefficients
from shared.scheduling.policies.moonpool import Moonpool
from shared.scheduling.pricing import FEW, price_local
from shared.scheduling.queue_discipline import Waiting, make_discipline
from shared.scheduling.situation import Situation
from shared.scheduling.vocabulary import ExpectedPrefix, InstanceView, NodeMatch
from tests.support.placing import BLOCK_BYTES, BLOCK_TOKENS, instance, match, request
from tests.support.reference_pricing import reference_ways

NUM_TOKENS = 2_000
NUM_BLOCKS = NUM_TOKENS // BLOCK_TOKENS
DECIDED_S = 0.5
SECONDS = st.floats(0, 4).map(lambda value: round(value, 3))


def prefill(draw: st.DrawFn, number: int, num_nodes: int) -> InstanceView:
    sizes_s = draw(st.lists(SECONDS, max_size=4))
    queue = [Waiting(str(n), size_s, -n * 0.5) for n, size_s in enumerate(sizes_s)]
    discipline = draw(st.sampled_from(["shortest_first", "shortest_first", "fifo"]))
    profile = make_discipline("shortest_first").profile(queue, 0.0)
    is_sorted = discipline != "fifo"
    # Two formats: that all are alike is taken note of.
    grid_tokens = draw(st.sampled_from([2, 2, 2, 3])) * BLOCK_TOKENS
    return instance(
        "prefill",
        f"w{number}",
        f"n{draw(st.integers(0, num_nodes - 1))}",
        discipline=discipline,
        grid_tokens=grid_tokens,
        expected_start_s=sum(sizes_s),
        work_by_size_s=profile.work_s if is_sorted else (),
        prompts_by_size=profile.prompts if is_sorted else (),
    )


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Queues, promises, links under load, matches with parts on disk, decode beside or not."""
    num_nodes, num_each = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    view = ClusterView(lease_s=3.0)
    prefills = [prefill(draw, number, num_nodes) for number in range(num_each)]
    for one in prefills:
        view.report(one, 0.0)
    for number in draw(st.lists(st.integers(0, 12), max_size=3, unique=True)):
        node = f"n{draw(st.integers(0, num_nodes + 2))}"
        running = draw(st.integers(0, 3))
        view.report(instance("decode", f"w{number}", node, running=running), 0.0)
    blocks_per_s = draw(st.sampled_from([2_000, 100, 10]))
    # No two nodes are equally busy when it is decided, but for at most one idle one.
    busy = draw(st.lists(st.integers(0, 200), min_size=6, max_size=6, unique=True))
    for node, blocks in enumerate(busy):
        waiting = blocks + DECIDED_S * blocks_per_s if blocks else 0
        view.nodes.report((f"n{node}", f"n{node}-1"), int(waiting * BLOCK_BYTES), 0.0)
    for place_id in range(draw(st.integers(0, 5))):
        compute_s = draw(SECONDS)
        promise = Promise(compute_s, NUM_TOKENS, 0, NUM_TOKENS, ends_s=9.0)
        view.promise("prefill", draw(st.sampled_from(prefills)).key, place_id, promise)
    moved = draw(st.sampled_from(prefills))
    view.report(instance("prefill", moved.id, "n0", grid_tokens=moved.grid_tokens), 0.2)
    profile = CostProfile(
        prefill=PrefillCoefficients(0.01, draw(st.sampled_from([0.2, 1.0, 5.0])), 0.05),
        transfer_bytes_per_s=BLOCK_BYTES * blocks_per_s,
        transfer_base_s=0.002,
        disk_bytes_per_s=BLOCK_BYTES / 0.02,
    )
    expected = tuple(
        ExpectedPrefix(one.key, draw(st.integers(1, NUM_BLOCKS)), draw(SECONDS))
        for one in draw(st.lists(st.sampled_from(prefills), max_size=2, unique_by=lambda v: v.id))
    )
    asked = request(NUM_TOKENS, expected=expected)
    depths = draw(st.lists(st.integers(0, NUM_BLOCKS), min_size=num_nodes, max_size=num_nodes))
    matches = [
        NodeMatch(f"n{node}", f"n{node}-1", depth, draw(st.sampled_from([0, 0, depth // 2])))
        for node, depth in enumerate(depths)
        if depth
    ]
    rows, _ = view.eligible("prefill", asked, DECIDED_S)
    return Situation(
        request=asked,
        view=view,
        rows=rows,
        matches={(one.node, one.incarnation): one for one in matches},
        cost=CostModel(profile),
        balancing_threshold=1.5,
        rng=random.Random(1),
        now_s=DECIDED_S,
        max_sources=draw(st.integers(1, 2)),
    )


@settings(max_examples=300, deadline=None)
@given(situations())
def test_columns_price_every_candidate_as_a_plain_loop_does(situation: Situation) -> None:
    expected = reference_ways(situation)
    ranked = list(Moonpool().rank(situation).in_order())
    assert sorted(one.prefill.id for one in ranked) == sorted(expected)
    for one in ranked:
        way, cost_s = expected[one.prefill.id]
        assert one.cost_s == pytest.approx(cost_s, rel=1e-9)
        if one.cached_tokens == way.cached_tokens:  # another one costs the same
            assert one.predicted.queue_s == pytest.approx(way.queue_s, abs=1e-9)
            assert one.predicted.load_s == pytest.approx(way.load_s, abs=1e-9)
            assert one.predicted.compute_s == pytest.approx(way.compute_s, rel=1e-9)
    costs_s = [one.cost_s for one in ranked]
    assert costs_s == sorted(costs_s)


@settings(max_examples=100, deadline=None)
@given(situations(), st.floats(0, 40))
def test_few_candidates_wait_as_long_to_the_last_bit_as_in_columns(
    situation: Situation, compute_s: float
) -> None:
    situation.rows = situation.rows[: situation_module.FEW]
    situation.facts = situation.table.facts(situation.rows)
    waits, delays = situation_module.waits_and_delays_s(situation, compute_s)
    with patch.object(situation_module, "FEW", 0):
        by_column = situation_module.waits_and_delays_s(situation, compute_s)
    assert waits.tolist() == by_column[0].tolist()
    assert np.asarray(delays).tolist() == np.asarray(by_column[1]).tolist()


@settings(max_examples=100, deadline=None)
@given(situations())
def test_what_nobody_holds_is_priced_to_the_last_bit_as_what_nobody_here_holds(
    situation: Situation,
) -> None:
    situation.matches, situation.depths = {}, []
    cold = price_local(situation)
    situation.matches, situation.depths = {("far", "far-1"): match("far", 3)}, [3]
    away = price_local(situation)
    assert cold.cost_s.tolist() == away.cost_s.tolist()
    cold.order = away.order = np.arange(len(situation.rows))
    assert list(cold.in_order()) == list(away.in_order())


@settings(max_examples=50, deadline=None)
@given(
    starts_s=st.lists(st.integers(0, 30), min_size=FEW + 1, max_size=3 * FEW),
    num_wanted=st.integers(1, 6),
    depth=st.integers(1, NUM_BLOCKS),
    seed=st.integers(0, 3),
)
def test_the_wanted_candidates_are_the_best_of_all(
    starts_s: list[int], num_wanted: int, depth: int, seed: int
) -> None:
    view = ClusterView(lease_s=3.0)
    for number, start_s in enumerate(starts_s):
        view.report(
            instance("prefill", f"p{number}", f"n{number}", expected_start_s=start_s / 10), 0.0
        )
    rows, _ = view.eligible("prefill", request(NUM_TOKENS), 0.0)

    def ranked(wanted: int | None) -> list[float]:
        situation = Situation(
            request=request(NUM_TOKENS),
            view=view,
            rows=rows,
            matches={("n3", "n3-1"): match("n3", depth)},
            cost=CostModel(),
            balancing_threshold=1.5,
            rng=random.Random(seed),
            now_s=0.0,
            num_wanted=wanted,
        )
        return [one.cost_s for one in Moonpool().rank(situation).in_order()]

    in_full = ranked(None)
    assert len(in_full) == len(starts_s)
    assert ranked(num_wanted) == in_full[:num_wanted]


def test_of_many_equals_each_is_taken_at_times() -> None:
    view = ClusterView(lease_s=3.0)
    for number in range(2 * FEW):
        view.report(instance("prefill", f"p{number}", f"n{number}"), 0.0)
    rows, _ = view.eligible("prefill", request(), 0.0)
    taken = {
        next(
            Moonpool()
            .rank(
                Situation(
                    request(), view, rows, {}, CostModel(), 1.5, random.Random(seed), 0.0, 1, 5
                )
            )
            .in_order()
        ).prefill.id
        for seed in range(40 * FEW)
    }
    assert len(taken) == 2 * FEW


@settings(max_examples=60, deadline=None)
@given(
    promised=st.lists(st.tuples(SECONDS, st.integers(1, 900)), min_size=1, max_size=6),
    sizes_s=st.lists(SECONDS, max_size=4),
)
def test_a_promise_added_to_the_columns_is_as_if_they_were_written_anew(
    promised: list[tuple[float, int]], sizes_s: list[float]
) -> None:
    queue = [Waiting(str(n), size_s, 0.0) for n, size_s in enumerate(sizes_s)]
    profile = make_discipline("shortest_first").profile(queue, 0.0)
    one = instance(
        "prefill",
        "p",
        "n",
        discipline="shortest_first",
        work_by_size_s=profile.work_s,
        prompts_by_size=profile.prompts,
    )
    view = ClusterView(lease_s=3.0)
    view.report(one, 0.0)
    for place_id, (compute_s, tokens) in enumerate(promised):
        promise = Promise(compute_s, tokens, tokens, tokens, ends_s=9.0)
        view.promise("prefill", one.key, place_id, promise)
    table = view.tables["prefill"]
    added = {name: column[0] for name, column in table.columns.items()}
    queues = table.queues[:, :, 0].copy()
    view.report(one, 0.0)  # none of them was answered: all still count
    assert {name: column[0] for name, column in table.columns.items()} == pytest.approx(added)
    assert table.queues[:, :, 0] == pytest.approx(queues)
