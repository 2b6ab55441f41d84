"""SelectDecodingInstance of Algorithm 1: balance the batches, then the room."""

import random
from collections.abc import Sequence

from shared.scheduling.cluster_view import Seen, step_s
from shared.scheduling.cost_model import CostModel
from shared.scheduling.vocabulary import NodeMatch, PlacementRequest, Source


def rank_decodes(
    decodes: Sequence[Seen], request: PlacementRequest, cost: CostModel, rng: random.Random
) -> list[Seen]:
    """The shortest predicted step first, then the most room; equals in random order."""
    shuffled = sorted(decodes, key=lambda seen: seen.view.key)
    rng.shuffle(shuffled)
    return sorted(
        shuffled,
        key=lambda seen: (round(step_s(seen, request, cost), 4), -seen.free_tokens),
    )


def decode_source(
    decode: Seen, prefill_node: str, cached_blocks: int, matches: Sequence[NodeMatch]
) -> Source | None:
    """Where decode can pull the cached prefix from while prefill runs.

    None: nothing is cached, or decode's own node has it or computes it.
    """
    own = (decode.view.node, decode.view.node_incarnation)
    if cached_blocks == 0 or decode.view.node == prefill_node:
        return None
    if any(m.num_blocks >= cached_blocks and (m.node, m.incarnation) == own for m in matches):
        return None
    others = [match for match in matches if match.node != decode.view.node and match.num_blocks]
    if not others:
        return None
    # The longest; of equals the prefill node, whose link is used for the suffix anyway.
    best = max(
        others,
        key=lambda m: (min(m.num_blocks, cached_blocks), m.node == prefill_node, m.node),
    )
    return Source(best.node, best.incarnation, min(best.num_blocks, cached_blocks))
