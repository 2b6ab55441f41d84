"""What a prefill candidate costs as one of a pair: moving its KV to decode, and whom it holds up.

A candidate on a node with decode instances hands over in place; elsewhere the KV moves. One whose
process decodes too holds its batch up while it computes. With few tokens to compute that is less
than moving the KV, with many it is more: which of the two is better falls out of the price
(conditional disaggregation). Both count only where candidates differ in them.
"""

import numpy as np

from shared.scheduling.cost_model import CostModel, Floats
from shared.scheduling.pricing import Prices
from shared.scheduling.vocabulary import InstanceView


def kv_bytes(instance: InstanceView, num_tokens: int) -> int:
    return num_tokens * instance.block_bytes // instance.block_tokens


def handoff_s(cost: CostModel, prefill: InstanceView, num_tokens: int, compute_s: float) -> float:
    """From token 0 until decode on another node has all KV: layers follow the compute closely."""
    tail_s = cost.transfer_s(prefill.block_bytes)
    return max(cost.transfer_s(kv_bytes(prefill, num_tokens)) - compute_s, 0.0) + tail_s


def add_pair_costs(prices: Prices) -> None:
    """To `cost_s` of every candidate."""
    situation = prices.situation
    beside = situation.view.neighbours.of(situation.rows)
    if situation.request.needs_decode and not isinstance(beside.has_decode, bool):
        prices.cost_s = prices.cost_s + np.where(beside.has_decode, 0.0, _handoffs_s(prices))
    if beside.own_decode is not None:
        batch = situation.view.tables["decode"].columns["batch"]
        prices.cost_s = prices.cost_s + np.where(
            beside.own_decode >= 0, prices.compute_s * batch[beside.own_decode], 0.0
        )


def _handoffs_s(prices: Prices) -> Floats:
    situation, cost = prices.situation, prices.situation.cost
    num_bytes = np.asarray(situation.facts.token_bytes * situation.request.num_tokens)
    moving_s = np.maximum(cost.transfer_many_s(num_bytes) - prices.compute_s, 0.0)
    tail_bytes = np.asarray(situation.facts.block_bytes, np.float64)
    seconds: Floats = moving_s + cost.transfer_many_s(tail_bytes)
    return seconds
