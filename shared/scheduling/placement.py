"""One decision from what is seen now: rank the prefill instances, pick decode, say why."""

import random
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
from shared.scheduling.pricing import Prices
from shared.scheduling.situation import Situation
from shared.scheduling.slo import NO_SLO, Slo, would_miss
from shared.scheduling.vocabulary import (
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


@dataclass(slots=True)
class Surroundings:
    """What a decision is made from. Made twice a placement, and not frozen: that takes longer."""

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
    winner: Candidate
    losers: tuple[Candidate, ...]
    """The best of them, with the reason why."""
    num_candidates: int
    counts: dict[str, int]
    """Of instances that are none, by reason."""
    matches: Mapping[tuple[str, str], NodeMatch]
    """Those that can be used."""


def rank_prefills(
    request: PlacementRequest,
    matches: Sequence[NodeMatch],
    policy: PlacementPolicy,
    around: Surroundings,
    root: bytes | None = None,
    num_losers: int | None = NUM_LOSERS,
) -> Ranking | Refusal:
    """Prefill instances that can take the request, best first; with `root` only of that format.

    With the best of those that lose (None: all)."""
    view, allowed_s = around.view, around.allowed.ttft_s
    rows, counts = view.eligible(
        "prefill", request, around.now_s, root=root, refused=around.refused
    )
    if not len(rows):
        return admission.refuse_role("prefill", request, counts, around.retry_after_s)
    num_wanted = None if num_losers is None else 1 + num_losers
    situation = Situation(
        request=request,
        view=view,
        rows=rows,
        matches=usable_matches(request, matches, view, around.now_s),
        cost=around.cost,
        balancing_threshold=around.balancing_threshold,
        rng=around.rng,
        now_s=around.now_s,
        max_sources=around.max_sources,
        # Who is late is sorted behind, so that all must be in order.
        num_wanted=num_wanted if allowed_s is None else None,
    )
    prices = policy.rank(situation)
    if allowed_s is not None:
        in_time_first(prices, allowed_s)
    best = prices.order[:num_wanted].tolist()
    winner = prices.candidate(best[0])
    return Ranking(
        winner=winner,
        losers=tuple(_loser(prices, position, winner, allowed_s) for position in best[1:]),
        num_candidates=len(prices),
        counts=counts,
        matches=situation.matches,
    )


def _loser(prices: Prices, position: int, winner: Candidate, allowed_s: float | None) -> Candidate:
    """One that would be late lost for that, whatever it costs, unless the winner is late, too."""
    loser = prices.candidate(position, winner.cost_s)
    late_s = loser.predicted.ttft_s - loser.predicted.overhead_s
    if allowed_s is None or not winner.predicted.ttft_s <= allowed_s < late_s:
        return loser
    return replace(loser, reason=would_miss("TTFT", late_s, allowed_s))


def in_time_first(prices: Prices, allowed_s: float) -> None:
    """Those that meet the target before those that do not, else as the policy has them."""
    is_late = prices.ttft_s[prices.order] > allowed_s
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
    row, columns = table.row_of[decode.key], table.columns
    stays = around.forecast.stays(after_s)
    joins = around.forecast.joins(around.now_s + after_s, around.now_s)
    running, context = decode.running, decode.context_in_batch_tokens
    batch = running * stays + (columns["batch"].item(row) - running) * joins
    tokens = context * stays + (columns["batch_tokens"].item(row) - context) * joins
    return around.cost.decode_step_s(batch + 1, tokens + request.num_tokens)


def usable_matches(
    request: PlacementRequest, matches: Sequence[NodeMatch], view: ClusterView, now_s: float
) -> Mapping[tuple[str, str], NodeMatch]:
    """Those of nodes that still are who they were when they held the blocks, and can be read."""
    if not request.use_cache:
        return {}
    found = {(match.node, match.incarnation): match for match in matches if match.num_blocks > 0}
    attached = view.tables["prefill"].rows_on
    if not found.keys() <= attached.keys():
        found = {
            node: match for node, match in found.items() if node in attached or view.may_hold(*node)
        }
    for service, name, incarnation in view.quarantine.parties_out(now_s):
        if service == "transfer":
            found.pop((name, incarnation), None)
    return found


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
) -> PlacementDecision:
    """The decision with its bill and the best of the candidates that lost."""
    cached_blocks = winner.cached_tokens // winner.prefill.block_tokens
    source = None
    if decode is not None:
        source = decode_source(decode, winner.prefill.node, cached_blocks, ranking.matches)
    counts = dict(ranking.counts)
    if ranking.num_candidates > 1:
        counts["not_best"] = ranking.num_candidates - 1
    return PlacementDecision(
        winner=winner,
        decode=decode,
        decode_source=source,
        predicted=predict(request, winner, decode, around),
        policy=policy,
        losers=ranking.losers,
        counts=tuple(sorted(counts.items())),
    )


def predict(
    request: PlacementRequest, winner: Candidate, decode: InstanceView | None, around: Surroundings
) -> PredictedTimes:
    """The bill of the pair. On one node nothing moves; else layers follow the compute closely."""
    moving_s, cost, times = 0.0, around.cost, winner.predicted
    if decode is None:
        return replace(times, overhead_s=cost.request_s)
    if decode.node != winner.prefill.node:
        moving_s = handoff_s(cost, winner.prefill, request.num_tokens, times.compute_s)
    # What the rule goes by is what is said, so that learning mends the rule's own error.
    if around.rule == "predicted":
        tbt_s = tbt_when_joined_s(request, decode, times.ttft_s, around)
    else:  # the paper's: the batch as it is now
        tbt_s = tbt_now_s(request, decode, around)
    return PredictedTimes(
        queue_s=times.queue_s,
        load_s=times.load_s,
        compute_s=times.compute_s,
        handoff_s=moving_s,
        tbt_s=tbt_s,
        overhead_s=cost.request_s,
        tbt_scale=cost.decode_scale,
    )
