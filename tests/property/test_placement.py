"""What every policy keeps, Algorithm 1 against its transcription, replay, and bursts."""

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.cost_model import CostModel
from shared.scheduling.effects import AnswerPlaced, AnswerRefused, SendReserve
from shared.scheduling.events import BillFinished, InstanceReported, TimerFired
from shared.scheduling.journal import from_line, to_line
from shared.scheduling.policies.global_cache_aware import GlobalCacheAware
from shared.scheduling.policies.registry import POLICIES
from shared.scheduling.pricing import Situation
from shared.scheduling.vocabulary import InstanceView, NodeMatch
from tests.support.placing import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    GRID_TOKENS,
    MODEL,
    Driven,
    instance,
    match,
    request,
)


@st.composite
def clusters(draw: st.DrawFn) -> list[InstanceView]:
    """Prefill and decode instances in all states of health."""
    made = []
    for role, prefix in (("prefill", "p"), ("decode", "d")):
        for index in range(draw(st.integers(1, 5))):
            one = instance(
                role,  # type: ignore[arg-type]
                f"{prefix}{index}",
                f"n{draw(st.integers(0, 3))}",
                state=draw(st.sampled_from(["ready", "ready", "ready", "draining", "starting"])),
                free_tokens=draw(st.sampled_from([0, 1_000, 50_000])),
                expected_start_s=draw(st.sampled_from([0.0, 0.5, 10.0])),
                running=draw(st.integers(0, 8)),
            )
            made.append(one)
    return made


MATCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 80)), max_size=4).map(
    lambda found: [match(f"n{node}", depth) for node, depth in dict(found).items()]
)


@settings(max_examples=60, deadline=None)
@given(
    cluster=clusters(),
    matches=MATCHES,
    policy=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 5),
    excluded=st.sets(st.sampled_from([f"{r}{n}-1" for r in "pd" for n in range(5)])),
    silent=st.sets(st.sampled_from([f"{r}{n}" for r in "pd" for n in range(5)])),
    refusing=st.sets(st.sampled_from([f"{r}{n}" for r in "pd" for n in range(5)]), max_size=3),
)
def test_no_policy_ever_asks_an_instance_that_cannot_take_the_request(
    cluster: list[InstanceView],
    matches: list[NodeMatch],
    policy: str,
    seed: int,
    excluded: set[str],
    silent: set[str],
    refusing: set[str],
) -> None:
    def run() -> tuple[Driven, AnswerPlaced | AnswerRefused]:
        driven = Driven(
            cluster,
            seed=seed,
            policy=policy,
            accepts=lambda effect: effect.instance[0] not in refusing,
        )
        driven.now_s = 5.0
        for one in cluster:
            if one.id not in silent:
                driven.feed(InstanceReported(one))
        asked = request(1_000, exclude=tuple(sorted(excluded)))
        return driven, driven.place(asked, *matches)

    driven, answer = run()
    able = {
        one.key
        for one in cluster
        if one.state == "ready"
        and one.incarnation not in excluded
        and one.id not in silent
        and (one.role == "prefill" or one.free_tokens >= 1_100)
    }
    asked = [effect.instance for effect in driven.reserved]
    assert set(asked) <= able
    assert len(set(asked)) == len(asked)
    willing = {key for key in able if key[0] not in refusing}
    roles = {key[0][0] for key in willing}
    assert isinstance(answer, AnswerPlaced) == (roles == {"p", "d"})
    again, same = run()
    assert same == answer
    assert again.journal == driven.journal


@dataclass
class Transcribed:
    ttft: float
    prefix_len: int
    is_fetched: bool


def algorithm_1(
    cluster: list[InstanceView],
    queue_s: dict[str, float],
    matches: list[NodeMatch],
    num_tokens: int,
    threshold: float,
    cost: CostModel,
) -> dict[str, Transcribed]:
    """The paper's loop, line by line, in tokens rounded down to the grid."""

    def length(num_blocks: int) -> int:
        whole = num_blocks * BLOCK_TOKENS // GRID_TOKENS * GRID_TOKENS
        return min(whole, (num_tokens - 1) // GRID_TOKENS * GRID_TOKENS)

    by_node = {found.node: found.num_blocks for found in matches}
    best_len = length(max(by_node.values(), default=0))
    estimates = {}
    for one in cluster:
        own = length(by_node.get(one.node, 0))
        is_remote_worth = best_len > 0 if own == 0 else best_len / own > threshold
        if is_remote_worth:
            prefix_len = best_len
            transfer = cost.transfer_s((best_len - own) * BLOCK_BYTES // BLOCK_TOKENS)
        else:
            prefix_len, transfer = own, 0.0
        ttft = transfer + queue_s[one.id] + cost.prefill_s(num_tokens, prefix_len)
        estimates[one.id] = Transcribed(ttft, prefix_len, is_remote_worth)
    return estimates


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    queues=st.lists(st.floats(0, 5), min_size=6, max_size=6),
    matches=MATCHES,
    num_tokens=st.integers(1, 1_400),
    threshold=st.sampled_from([1.0, 1.5, 4.0]),
    seed=st.integers(0, 3),
)
def test_global_cache_aware_is_algorithm_1(
    nodes: list[int],
    queues: list[float],
    matches: list[NodeMatch],
    num_tokens: int,
    threshold: float,
    seed: int,
) -> None:
    cluster = [
        instance("prefill", f"p{i}", f"n{node}", expected_start_s=queues[i])
        for i, node in enumerate(nodes)
    ]
    queue_s = {one.id: queues[i] for i, one in enumerate(cluster)}
    # A match cannot be longer than the prompt's full blocks.
    fitting = [
        NodeMatch(m.node, m.incarnation, min(m.num_blocks, num_tokens // BLOCK_TOKENS))
        for m in matches
    ]
    view = ClusterView(lease_s=3.0)
    for one in cluster:
        view.report(one, 0.0)
    situation = Situation(
        request=request(num_tokens),
        view=view,
        rows=np.arange(len(cluster)),
        matches={(m.node, m.incarnation): m for m in fitting if m.num_blocks},
        cost=CostModel(),
        balancing_threshold=threshold,
        rng=random.Random(seed),
        now_s=0.0,
    )
    ranked = list(GlobalCacheAware().rank(situation).in_order())
    expected = algorithm_1(cluster, queue_s, fitting, num_tokens, threshold, CostModel())
    assert {c.prefill.id for c in ranked} == set(expected)
    for candidate in ranked:
        own = expected[candidate.prefill.id]
        assert candidate.cost_s == pytest.approx(own.ttft)
        assert candidate.cached_tokens == own.prefix_len
        assert (candidate.source is not None) == own.is_fetched
    best = min(own.ttft for own in expected.values())
    assert expected[ranked[0].prefill.id].ttft == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["place", "report", "bill", "time"]),
            st.integers(0, 3),
            st.integers(1, 2_000),
        ),
        max_size=40,
    ),
    policy=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 9),
)
def test_replaying_the_journal_gives_the_same_effects(
    steps: list[tuple[str, int, int]], policy: str, seed: int
) -> None:
    cluster = [instance("prefill", f"p{n}", f"n{n}") for n in range(3)]
    cluster += [instance("decode", f"d{n}", f"n{n}") for n in range(2)]
    flaky = random.Random(seed)
    driven = Driven(cluster, seed=seed, policy=policy, accepts=lambda _: flaky.random() < 0.8)
    for kind, number, size in steps:
        driven.now_s += 0.1
        if kind == "place":
            driven.place(request(size), match(f"n{number}", size // BLOCK_TOKENS))
        elif kind == "report":
            driven.feed(InstanceReported(cluster[number]))
        elif kind == "bill":
            driven.feed(BillFinished(MODEL, size, 0, size / 1_000, tbt_s=0.05))
        else:
            driven.now_s += 2.0
            driven.feed(TimerFired())
    fresh = ConductorCore(driven.settings, random.Random(seed))
    for line in driven.journal:
        step = from_line(line)
        effects = fresh.on_event(step.event, step.now_s)
        assert tuple(effects) == step.effects
        assert to_line(step.now_s, step.event, effects) == line


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("blocks_in_common", [0, 1, 2])
def test_a_burst_of_siblings_spreads(policy: str, blocks_in_common: int) -> None:
    """No report comes in between: only what the core placed itself can spread them."""
    cluster = [instance("prefill", f"p{n}", f"n{n}") for n in range(4)]
    cluster += [instance("decode", f"d{n}", f"n{n}") for n in range(4)]
    driven = Driven(cluster, policy=policy, seed=7)
    shared_block = [match("n0", blocks_in_common)] if blocks_in_common else []
    for _ in range(40):
        assert isinstance(driven.place(request(1_000), *shared_block), AnswerPlaced)
    for role in ("prefill", "decode"):
        load = Counter(e.instance[0] for e in driven.reserved if e.role == role)
        if policy == "least_loaded" or role == "decode":
            assert max(load.values()) <= 11
        else:
            assert max(load.values()) <= 20, load
            assert len(load) == 4


def test_two_conductors_that_see_the_same_do_not_both_flood_one_instance() -> None:
    cluster = [instance("prefill", f"p{n}", f"n{n}") for n in range(8)]
    cluster += [instance("decode", "d", "n8")]
    first_choices = Counter[str]()
    for seed in range(64):
        driven = Driven(cluster, seed=seed)
        driven.place(request())
        (prefill,) = (e for e in driven.reserved if e.role == "prefill")
        assert isinstance(prefill, SendReserve)
        first_choices[prefill.instance[0]] += 1
    assert max(first_choices.values()) <= 20
