"""Prices prefill candidates: what is at hand, what could be fetched, what must be computed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.scheduling.cost_model import CostModel
from shared.scheduling.vocabulary import (
    Candidate,
    InstanceView,
    NodeMatch,
    PlacementRequest,
    PredictedTimes,
    Source,
)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a policy may look at. `prefills` are eligible: live, not excluded, not draining."""

    request: PlacementRequest
    prefills: Sequence[InstanceView]
    matches: Mapping[tuple[str, str], NodeMatch]
    """By (node, node incarnation)."""
    queue_s: Mapping[str, float]
    """Seconds until a new request would start, by instance id."""
    cost: CostModel
    balancing_threshold: float
    rng: random.Random

    def local_blocks(self, instance: InstanceView) -> int:
        match = self.matches.get((instance.node, instance.node_incarnation))
        return min(match.num_blocks, self.request.num_blocks) if match is not None else 0


def price(
    situation: Situation,
    instance: InstanceView,
    source: NodeMatch | None,
    *,
    is_overlapped: bool = False,
) -> Candidate:
    """The candidate with what it has locally and, when given, with `source` fetched.

    Algorithm 1 adds transfer and queue; `is_overlapped` counts only the longer of them.
    """
    request, cost = situation.request, situation.cost
    local_blocks = situation.local_blocks(instance)
    cached = instance.usable_tokens(local_blocks, request.num_tokens)
    load_s = 0.0
    fetch: Source | None = None
    if source is not None:
        num_blocks = min(source.num_blocks, request.num_blocks)
        with_source = instance.usable_tokens(num_blocks, request.num_tokens)
        if with_source > cached:
            missing_tokens = with_source - cached
            load_s = cost.transfer_s(missing_tokens * instance.block_bytes // instance.block_tokens)
            cached = with_source
            # Blocks beyond the last whole chunk would be moved and then computed all the same.
            fetch = Source(source.node, source.incarnation, cached // instance.block_tokens)
    queue_s = situation.queue_s.get(instance.id, 0.0)
    compute_s = cost.prefill_s(request.num_tokens, cached)
    predicted = PredictedTimes(queue_s=queue_s, load_s=load_s, compute_s=compute_s)
    cost_s = predicted.ttft_s if is_overlapped else load_s + queue_s + compute_s
    return Candidate(instance, local_blocks, cached, fetch, predicted, cost_s)


def ordered(candidates: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
    """Cheapest first; equals in random order, so that a burst does not go one way."""
    by_id = sorted(candidates, key=lambda candidate: candidate.prefill.key)
    rng.shuffle(by_id)
    return sorted(by_id, key=lambda candidate: candidate.cost_s)
