"""When a hot prefix gets another replica, and where."""

import random
from typing import Any

import pytest

from shared.kv.ids import KEY_BYTES
from shared.scheduling.cost_model import CostModel, CostProfile, PrefillCoefficients
from shared.scheduling.effects import AnswerPlaced
from shared.scheduling.replica_targets import targets_of
from shared.scheduling.replication import (
    Copy,
    Miss,
    Replication,
    ReplicationSettings,
    TargetNode,
    miss_of,
)
from tests.support.placing import BLOCK_BYTES, ROOT, Driven, instance, match, request

CHAIN = random.Random(1).randbytes(64 * KEY_BYTES)
COST = CostModel(CostProfile(transfer_bytes_per_s=1e9, transfer_base_s=0.0))
"""64 blocks take 67 ms."""


def missed(paid_s: float = 1.0, chain: bytes = CHAIN, **changes: Any) -> Miss:
    values: dict[str, Any] = {"had_blocks": 0, "block_bytes": BLOCK_BYTES} | changes
    return Miss("m", ROOT, chain, paid_s=paid_s, **values)


def node(name: str, wait_s: float = 0.0, free_blocks: int = 1_000, **changes: Any) -> TargetNode:
    return TargetNode(name, f"{name}-1", wait_s, free_blocks, **changes)


def held_by(*names: str) -> list[tuple[str, str]]:
    return [(name, f"{name}-1") for name in names]


def table_of(*misses: Miss, **settings: Any) -> Replication:
    table = Replication(ReplicationSettings(**settings))
    for miss in misses:
        table.observe(miss, 0.0)
    return table


def plan(
    table: Replication, holders: list[str], targets: list[TargetNode], now_s: float = 0.0
) -> Copy | None:
    hot = table.candidates(now_s, 1)
    return table.plan(hot[0], held_by(*holders), targets, COST, now_s) if hot else None


def test_the_next_replica_goes_to_the_least_loaded_node_without_one() -> None:
    table = table_of(*[missed()] * 10)
    copy = plan(table, ["n1"], [node("n1"), node("n2", 0.4), node("n3", 0.1), node("n4", 0.2)])
    assert copy is not None
    assert (copy.source, copy.target) == (("n1", "n1-1"), ("n3", "n3-1"))
    assert copy.num_bytes == 64 * BLOCK_BYTES
    assert copy.saving_s > copy.cost_s


def test_what_was_missed_once_is_not_copied() -> None:
    assert plan(table_of(missed()), ["n1"], [node("n2")]) is None


def test_what_costs_more_to_move_than_it_saves_stays_where_it_is() -> None:
    assert plan(table_of(*[missed(0.01)] * 5), ["n1"], [node("n2")]) is None
    assert plan(table_of(*[missed(0.05)] * 5), ["n1"], [node("n2")]) is not None


def test_what_it_would_push_out_counts_as_cost() -> None:
    table = table_of(*[missed(0.018)] * 5)
    with_room = plan(table, ["n1"], [node("n2")])
    assert with_room is not None
    assert with_room.cost_s == pytest.approx(0.25 * 64 * BLOCK_BYTES / 1e9)
    assert plan(table, ["n1"], [node("n2", free_blocks=0)]) is None


def test_a_copy_stands_for_its_share_of_the_misses_until_no_node_lacks_it() -> None:
    table = table_of(*[missed()] * 20, budget_bytes_per_s=1e12)
    names = [f"n{number}" for number in range(1, 9)]
    holders = ["n1"]
    for step in range(20):
        copy = plan(table, holders, [node(name) for name in names], step * 0.01)
        if copy is None:
            break
        assert copy.target[0] not in holders
        table.started(copy, step * 0.01)
        table.finished(copy, step * 0.01, is_done=True)
        holders.append(copy.target[0])
    assert sorted(holders) == names


def test_without_new_misses_it_stops_by_itself_and_forgets() -> None:
    table = table_of(*[missed()] * 20)
    targets = [node("n1"), node("n2")]
    assert plan(table, ["n1"], targets, 10.0) is not None
    assert plan(table, ["n1"], targets, 120.0) is None
    table.forget(400.0)
    assert len(table) == 0


def test_a_node_moves_no_more_than_its_budget() -> None:
    table = table_of(*[missed()] * 50, budget_bytes_per_s=64 * BLOCK_BYTES / 10.0)
    targets = [node(f"n{number}") for number in range(1, 5)]
    first = plan(table, ["n1"], targets)
    assert first is not None
    table.started(first, 0.0)
    table.finished(first, 0.1, is_done=True)
    assert plan(table, ["n1"], targets, 5.0) is None
    assert plan(table, ["n1"], targets, 10.0) is not None


def test_a_copy_that_runs_is_not_begun_twice_and_one_that_failed_waits() -> None:
    table = table_of(*[missed()] * 50, budget_bytes_per_s=1e12)
    targets = [node("n1"), node("n2")]
    copy = plan(table, ["n1"], targets)
    assert copy is not None
    table.started(copy, 0.0)
    for _ in range(5):
        table.observe(missed(), 0.0)
    assert plan(table, ["n1"], targets, 1.0) is None
    table.finished(copy, 1.0, is_done=False)
    assert plan(table, ["n1"], targets, 5.0) is None
    assert plan(table, ["n1"], targets, 11.5) is not None


def test_the_part_that_many_prompts_share_is_found_among_their_own_parts() -> None:
    rng = random.Random(2)
    shared_part = CHAIN[: 32 * KEY_BYTES]
    own = [shared_part + rng.randbytes(32 * KEY_BYTES) for _ in range(12)]
    table = table_of(*[missed(chain=chain) for chain in own])
    (hot,) = table.candidates(0.0, 8)
    assert (hot.num_blocks, hot.keys) == (32, shared_part)


def test_of_a_prefix_and_its_beginning_missed_as_often_only_the_longer_one_is_weighed() -> None:
    table = table_of(*[missed()] * 3)
    assert [hot.num_blocks for hot in table.candidates(0.0, 8)] == [64]


def test_blocks_that_the_node_had_are_not_missed() -> None:
    table = table_of(*[missed(had_blocks=40)] * 3)
    assert [hot.num_blocks for hot in table.candidates(0.0, 8)] == [64]
    assert len(table) == 1


def test_the_table_stays_bounded_and_keeps_what_costs_most() -> None:
    rng = random.Random(3)
    table = table_of(max_prefixes=8)
    for _ in range(200):
        table.observe(missed(0.01, rng.randbytes(KEY_BYTES)), 0.0)
        table.observe(missed(), 0.0)
        table.check_integrity()
    assert table.candidates(0.0, 1)[0].keys == CHAIN


# --- what a placement pays ---------------------------------------------------------------------
PROFILE = CostProfile(
    prefill=PrefillCoefficients(0.0, 1.0, 0.0), transfer_bytes_per_s=1e9, transfer_base_s=0.0
)


def missed_by(insisted: str, *holders: str) -> Miss | None:
    driven = Driven(
        [instance("prefill", f"p{n}", f"n{n}") for n in (1, 2)] + [instance("decode", "d", "n9")],
        profile=PROFILE,
        policy="moonpool",
    )
    asked = request(1_024, prefill=insisted, chain=CHAIN)
    matches = tuple(match(name, 62) for name in holders)
    answer = driven.place(asked, *matches)
    assert isinstance(answer, AnswerPlaced)
    return miss_of(asked, matches, answer.decision, driven.core.learnt("m").cost)


def test_a_placement_where_the_prefix_is_misses_nothing() -> None:
    assert missed_by("p1", "n1") is None
    assert missed_by("p1") is None


def test_a_placement_elsewhere_pays_the_fetch() -> None:
    miss = missed_by("p2", "n1")
    assert miss is not None
    assert (miss.had_blocks, len(miss.chain)) == (0, 62 * KEY_BYTES)
    assert miss.paid_s == pytest.approx(62 * BLOCK_BYTES / 1e9)


def test_targets_are_nodes_whose_prefill_can_be_chosen_with_what_waits_there() -> None:
    driven = Driven(
        [
            instance("prefill", "p1", "n1", expected_start_s=2.0),
            instance("prefill", "p2", "n1", expected_start_s=0.5),
            instance("prefill", "p3", "n2", state="draining"),
            instance("prefill", "p4", "n3", root=b"o" * 16),
            instance("prefill", "p5", "n4"),
        ]
    )
    pools = {(f"n{number}", f"n{number}-1"): (7, 9) for number in (1, 2, 3)}
    (target,) = targets_of(driven.core.view, ROOT, pools, 3.0, 0.25)
    assert target == TargetNode("n1", "n1-1", 0.25, 7, 0, 9)
    assert targets_of(driven.core.view, ROOT, pools, 3.0, 9.0) == []
