"""One decision from what is seen now: rank the prefill instances, pick decode, say why."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from shared.scheduling import admission
from shared.scheduling.admission import DEFAULT_RULE, AdmissionRule
from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.cost_model import CostModel
from shared.scheduling.decode_choice import WayToDecode, best_decode, decode_source
from shared.scheduling.decode_forecast import DecodeForecast
from shared.scheduling.pairing import handoff_s
from shared.scheduling.policies.base import PlacementPolicy
from shared.scheduling.pricing import Prices, Situation, ttfts_s
from shared.scheduling.slo import Slo
from shared.scheduling.vocabulary import (
    NO_SLO,
    Candidate,
    InstanceKey,
    InstanceView,
    NodeMatch,
    PlacementDecision,
    PlacementRequest,
    PredictedTimes,
    Refusal,
)

NUM_LOSERS = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision is made from."""

    view: ClusterView
    cost: CostModel
    forecast: DecodeForecast
    balancing_threshold: float
    rng: random.Random
    now_s: float
    refused: AbstractSet[InstanceKey] = frozenset()
    """Instances that refused this placement already."""
    retry_after_s: float | None = None
    max_sources: int = 1
    allowed: Slo = NO_SLO
    """Targets of this request, by its class."""
    rule: AdmissionRule = DEFAULT_RULE


@dataclass(frozen=True, slots=True)
class Ranking:
    prices: Prices
    counts: Counter[str]


def rank_prefills(
    request: PlacementRequest,
    matches: Sequence[NodeMatch],
    policy: PlacementPolicy,
    around: Surroundings,
    root: bytes | None = None,
) -> Ranking | Refusal:
    """Prefill instances that can take the request, best first; with `root` only of that format."""
    rows, counts = around.view.eligible(
        "prefill", request, around.now_s, root=root, refused=around.refused
    )
    if not len(rows):
        return admission.refuse_role("prefill", request, counts, around.retry_after_s)
    situation = Situation(
        request=request,
        view=around.view,
        rows=rows,
        matches=usable_matches(request, matches, around.view, around.now_s),
        cost=around.cost,
        balancing_threshold=around.balancing_threshold,
        rng=around.rng,
        now_s=around.now_s,
        max_sources=around.max_sources,
    )
    prices = policy.rank(situation)
    if around.allowed.ttft_s is not None:
        in_time_first(prices, around.allowed.ttft_s)
    return Ranking(prices, counts)


def in_time_first(prices: Prices, allowed_s: float) -> None:
    """Those that meet the target before those that do not, else as the policy has them."""
    is_late = ttfts_s(prices)[prices.order] > allowed_s
    prices.order = prices.order[np.argsort(is_late, kind="stable")]


def judge(
    request: PlacementRequest, winner: Candidate, decode: InstanceView | None, around: Surroundings
) -> Refusal | None:
    """Whether the pair is predicted to meet the targets, by the rule in force."""
    if around.allowed == NO_SLO:
        return None
    predicted = predict(request, winner, decode, around)
    return admission.refuse_slow(
        predicted, around.allowed, around.rule, around.forecast.decode_time_s
    )


def tbt_now_s(request: PlacementRequest, decode: InstanceView, around: Surroundings) -> float:
    """As if it joined now, whoever is still on the way to the batch."""
    return around.cost.decode_step_s(
        decode.running + 1, decode.context_in_batch_tokens + request.num_tokens
    )


def tbt_when_joined_s(
    request: PlacementRequest, decode: InstanceView, after_s: float, around: Surroundings
) -> float:
    """When the prefill will be done: of the batch some have left, of those on the way some came."""
    table = around.view.tables["decode"]
    row = table.data[table.row_of[decode.incarnation]]
    stays = around.forecast.stays(after_s)
    joins = around.forecast.joins(around.now_s + after_s, around.now_s)
    running, context = decode.running, decode.context_in_batch_tokens
    batch = running * stays + (int(row["batch"]) - running) * joins
    tokens = context * stays + (int(row["batch_tokens"]) - context) * joins
    return around.cost.decode_step_s(batch + 1, tokens + request.num_tokens)


def usable_matches(
    request: PlacementRequest, matches: Sequence[NodeMatch], view: ClusterView, now_s: float
) -> Mapping[tuple[str, str], NodeMatch]:
    """Those of nodes that still are who they were when they held the blocks, and can be read."""
    if not request.use_cache:
        return {}
    out = {party[1:] for party in view.quarantine.parties_out(now_s) if party[0] == "transfer"}
    return {
        node: match
        for match in matches
        if match.num_blocks > 0
        and (node := (match.node, match.incarnation)) not in out
        and view.may_hold(*node)
    }


def choose_decode(
    request: PlacementRequest, winner: Candidate, around: Surroundings
) -> InstanceView | Refusal | None:
    """The decode instance for the chosen prefill instance: of the same format, KV must be equal.

    None: it needs none.
    """
    if not request.needs_decode:
        return None
    view, prefill, cost = around.view, winner.prefill, around.cost
    rows, counts = view.eligible(
        "decode", request, around.now_s, root=prefill.root, refused=around.refused
    )
    if not len(rows):
        return admission.refuse_role("decode", request, counts, around.retry_after_s)
    moving_s = handoff_s(cost, prefill, request.num_tokens, winner.predicted.compute_s)
    way = WayToDecode(
        (prefill.node, prefill.node_incarnation), moving_s, around.forecast.answer_tokens
    )
    table = view.tables["decode"]
    return table.view(best_decode(table, rows, request, cost, way, around.rng))


def decide(
    request: PlacementRequest,
    ranking: Ranking,
    winner: Candidate,
    decode: InstanceView | None,
    policy: str,
    around: Surroundings,
    num_losers: int | None = NUM_LOSERS,
) -> PlacementDecision:
    """The decision with its bill and the best of the candidates that lost (None: all)."""
    usable = ranking.prices.situation.matches
    cached_blocks = winner.cached_tokens // winner.prefill.block_tokens
    others = (
        replace(candidate, reason=_why(candidate, winner))
        for candidate in ranking.prices.in_order()
        if candidate.prefill is not winner.prefill
    )
    losers = list(itertools.islice(others, num_losers))
    source = None
    if decode is not None:
        source = decode_source(decode, winner.prefill.node, cached_blocks, usable)
    counts = Counter(ranking.counts)
    if len(ranking.prices) > 1:
        counts["not_best"] = len(ranking.prices) - 1
    return PlacementDecision(
        winner=winner,
        decode=decode,
        decode_source=source,
        predicted=predict(request, winner, decode, around),
        policy=policy,
        losers=tuple(losers),
        counts=tuple(sorted(counts.items())),
    )


def predict(
    request: PlacementRequest, winner: Candidate, decode: InstanceView | None, around: Surroundings
) -> PredictedTimes:
    """The bill of the pair. On one node nothing moves; else layers follow the compute closely."""
    moving_s, cost = 0.0, around.cost
    if decode is None:
        return replace(winner.predicted, overhead_s=cost.request_s)
    if decode.node != winner.prefill.node:
        compute_s = winner.predicted.compute_s
        moving_s = handoff_s(cost, winner.prefill, request.num_tokens, compute_s)
    # What the rule goes by is what is said, so that learning mends the rule's own error.
    if around.rule == "predicted":
        tbt_s = tbt_when_joined_s(request, decode, winner.predicted.ttft_s, around)
    else:  # the paper's: the batch as it is now
        tbt_s = tbt_now_s(request, decode, around)
    return replace(
        winner.predicted,
        handoff_s=moving_s,
        tbt_s=tbt_s,
        overhead_s=cost.request_s,
        tbt_scale=cost.decode_scale,
    )


def _why(candidate: Candidate, winner: Candidate) -> str:
    if candidate.cost_s > winner.cost_s:
        return f"cost {candidate.cost_s:.3f} s, the winner's {winner.cost_s:.3f} s"
    return "not its turn"
