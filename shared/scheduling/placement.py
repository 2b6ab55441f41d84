"""One decision from what is seen now: rank the prefill instances, pick decode, say why."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from shared.scheduling import admission
from shared.scheduling.cluster_view import ClusterView, Seen, step_s
from shared.scheduling.cost_model import CostModel
from shared.scheduling.decode_choice import decode_source, rank_decodes
from shared.scheduling.policies.base import PlacementPolicy
from shared.scheduling.pricing import Situation
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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision is made from."""

    view: ClusterView
    cost: CostModel
    balancing_threshold: float
    rng: random.Random
    now_s: float
    refused: AbstractSet[InstanceKey] = frozenset()
    """Instances that refused this placement already."""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    candidates: Sequence[Candidate]
    counts: Counter[str]


def rank_prefills(
    request: PlacementRequest,
    matches: Sequence[NodeMatch],
    policy: PlacementPolicy,
    around: Surroundings,
    root: bytes | None = None,
) -> Ranking | Refusal:
    """Prefill instances that can take the request, best first; with `root` only of that format."""
    found, counts = around.view.eligible("prefill", request, around.now_s)
    of_root = _of_root(found, root, counts)
    open_to = [seen.view for seen in of_root if seen.view.key not in around.refused]
    num_refused = len(of_root) - len(open_to)
    if not open_to:
        return admission.refuse_role("prefill", request, counts, num_refused, around.retry_after_s)
    if num_refused:
        counts["refused"] = num_refused
    situation = Situation(
        request=request,
        prefills=open_to,
        matches=usable_matches(request, matches),
        queue_s=around.view.queues_s(around.now_s),
        cost=around.cost,
        balancing_threshold=around.balancing_threshold,
        rng=around.rng,
    )
    return Ranking(policy.rank(situation), counts)


def usable_matches(
    request: PlacementRequest, matches: Sequence[NodeMatch]
) -> Mapping[tuple[str, str], NodeMatch]:
    if not request.use_cache:
        return {}
    return {(match.node, match.incarnation): match for match in matches if match.num_blocks > 0}


def choose_decode(
    request: PlacementRequest, root: bytes | None, around: Surroundings
) -> Seen | Refusal:
    """The decode instance; `root` is that of the chosen prefill instance: KV must be equal."""
    found, counts = around.view.eligible("decode", request, around.now_s)
    of_root = _of_root(found, root, counts)
    open_to = [seen for seen in of_root if seen.view.key not in around.refused]
    num_refused = len(of_root) - len(open_to)
    if not open_to:
        return admission.refuse_role("decode", request, counts, num_refused, around.retry_after_s)
    return rank_decodes(open_to, request, around.cost, around.rng)[0]


def _of_root(found: Sequence[Seen], root: bytes | None, counts: Counter[str]) -> list[Seen]:
    of_root = [seen for seen in found if root is None or seen.view.root == root]
    if len(of_root) < len(found):
        counts["other_format"] = len(found) - len(of_root)
    return of_root


def decide(
    request: PlacementRequest,
    matches: Sequence[NodeMatch],
    ranking: Ranking,
    winner: Candidate,
    decode: Seen,
    policy: str,
    cost: CostModel,
) -> PlacementDecision:
    """The decision with its bill and the candidates that lost."""
    usable = list(usable_matches(request, matches).values())
    cached_blocks = winner.cached_tokens // winner.prefill.block_tokens
    losers = [
        replace(candidate, reason=_why(candidate, winner))
        for candidate in ranking.candidates
        if candidate.prefill.key != winner.prefill.key
    ]
    counts = Counter(ranking.counts)
    if losers:
        counts["not_best"] = len(losers)
    return PlacementDecision(
        winner=winner,
        decode=decode.view,
        decode_source=decode_source(decode, winner.prefill.node, cached_blocks, usable),
        predicted=predict(request, winner, decode, cost),
        policy=policy,
        losers=tuple(losers[:NUM_LOSERS]),
        counts=tuple(sorted(counts.items())),
    )


def predict(
    request: PlacementRequest, winner: Candidate, decode: Seen, cost: CostModel
) -> PredictedTimes:
    """The bill of the pair. On one node nothing moves; else layers follow the compute closely."""
    handoff_s = 0.0
    if decode.view.node != winner.prefill.node:
        num_bytes = kv_bytes(winner.prefill, request.num_tokens)
        tail_s = cost.transfer_s(winner.prefill.block_bytes)
        handoff_s = max(cost.transfer_s(num_bytes) - winner.predicted.compute_s, 0.0) + tail_s
    return replace(winner.predicted, handoff_s=handoff_s, tbt_s=step_s(decode, request, cost))


def kv_bytes(instance: InstanceView, num_tokens: int) -> int:
    return num_tokens * instance.block_bytes // instance.block_tokens


def _why(candidate: Candidate, winner: Candidate) -> str:
    if candidate.cost_s > winner.cost_s:
        return f"cost {candidate.cost_s:.3f} s, the winner's {winner.cost_s:.3f} s"
    return "not its turn"
