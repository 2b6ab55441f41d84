"""SelectDecodingInstance of Algorithm 1: balance the batches, then the room.

Where instances are equal to it, the one that the KV need not move to; a busier one on the prefill's
node is taken as long as its longer steps cost an answer less than the move.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shared.scheduling.cost_model import CostModel
from shared.scheduling.instance_table import InstanceTable, Rows, among
from shared.scheduling.vocabulary import InstanceView, NodeMatch, PlacementRequest, Source


@dataclass(frozen=True, slots=True)
class WayToDecode:
    """From the prefill's node (with its incarnation) to another one."""

    node: tuple[str, str]
    handoff_s: float
    answer_tokens: float
    """How long answers are, as far as is known."""


def best_decode(
    table: InstanceTable,
    rows: Rows,
    request: PlacementRequest,
    cost: CostModel,
    way: WayToDecode,
    rng: random.Random,
) -> int:
    """The least time for the answer, then the most room; one of equals at random."""
    if len(rows) == 1:
        return int(rows[rng.randrange(1)])  # draws as much as a choice among several does
    batch = table.column("batch", rows) + 1
    steps_s = cost.decode_many_step_s(
        batch, table.column("batch_tokens", rows) + request.num_tokens
    )
    costs_s = steps_s.round(4) * min(way.answer_tokens, request.max_tokens)
    near = table.rows_on.get(way.node)
    if near is not None:
        is_near = among(rows, near)
        if is_near.any():
            costs_s = costs_s + np.where(is_near, 0.0, way.handoff_s)
    best = rows[costs_s == np.minimum.reduce(costs_s)]
    if len(best) > 1:
        room = table.column("free_tokens", best)
        best = best[room == room.max()]
    return int(best[rng.randrange(len(best))])


def decode_source(
    decode: InstanceView,
    prefill_node: str,
    cached_blocks: int,
    matches: Mapping[tuple[str, str], NodeMatch],
) -> Source | None:
    """Where decode can pull the cached prefix from while prefill runs.

    None: nothing is cached, or decode's own node has it or computes it.
    """
    if cached_blocks == 0 or decode.node == prefill_node:
        return None
    own = matches.get((decode.node, decode.node_incarnation))
    if own is not None and own.num_blocks >= cached_blocks:
        return None

    def rank(match: NodeMatch) -> tuple[bool, str]:
        """Of equals the prefill node, whose link is used for the suffix anyway."""
        return match.node == prefill_node, match.node

    best: NodeMatch | None = None
    longest = 1
    for match in matches.values():
        if match.num_blocks < longest or match.node == decode.node:
            continue
        depth = min(match.num_blocks, cached_blocks)
        if best is None or depth > longest or rank(match) > rank(best):
            best, longest = match, depth
    return None if best is None else Source(best.node, best.incarnation, longest)
