"""What a prefill candidate costs as one of a pair: moving its KV to decode, and whom it holds up.

A candidate on a node with decode instances hands over in place; elsewhere the KV moves. One whose
process decodes too holds its batch up while it computes. With few tokens to compute that is less
than moving the KV, with many it is more: which of the two is better falls out of the price
(conditional disaggregation). Both count only where candidates differ in them.
"""

import numpy as np
from numpy.typing import NDArray

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
    shared_node, own_decode = situation.view.neighbours(situation.rows)
    is_handed_over = situation.request.needs_decode
    if is_handed_over and shared_node.any() and not shared_node.all():
        prices.cost_s = prices.cost_s + np.where(shared_node, 0.0, _handoffs_s(prices))
    is_coupled = own_decode >= 0
    if is_coupled.any():
        batch = situation.view.tables["decode"].data["batch"]
        prices.cost_s = prices.cost_s + np.where(
            is_coupled, prices.compute_s * batch[own_decode], 0.0
        )


def _handoffs_s(prices: Prices) -> Floats:
    situation, cost = prices.situation, prices.situation.cost
    num_bytes = situation.token_bytes * situation.request.num_tokens
    moving_s = np.maximum(cost.transfer_many_s(num_bytes) - prices.compute_s, 0.0)
    tail_bytes: NDArray[np.float64] = situation.column("block_bytes").astype(np.float64)
    return moving_s + cost.transfer_many_s(tail_bytes)
