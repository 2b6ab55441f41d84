"""A prompt goes where its prefix is being computed, when waiting for that is the cheapest."""

import numpy as np

from shared.scheduling.fetching import take_if_better
from shared.scheduling.pricing import Offer, Prices
from shared.scheduling.situation import waits_and_delays_s


def offer_expected(prices: Prices) -> None:
    """Reprices instances that will have more of the prompt than is at hand: it waits for it there.

    Only at that very instance: there the prompt stands behind the one that computes the prefix, and
    looks again in its turn. Nothing can be fetched before it is there.
    """
    situation = prices.situation
    request = situation.request
    if not request.expected or not request.use_cache:
        return
    num_blocks = np.zeros(len(situation.rows), np.int64)
    eta_s = np.zeros(len(situation.rows))
    for one in request.expected:
        row = situation.table.row_of.get(one.instance)
        if row is not None:
            here = situation.rows == row
            num_blocks[here], eta_s[here] = min(one.num_blocks, request.num_blocks), one.eta_s
    cached = situation.usable_tokens(num_blocks)
    compute_s = situation.cost.prefill_each_s(request.num_tokens, cached)
    queue_s, delay_s = waits_and_delays_s(situation, compute_s)
    # It does not pass the one it waits for, however short it is then.
    waiting = Offer(cached, prices.disk_s, compute_s, np.maximum(queue_s, eta_s), delay_s)
    take_if_better(prices, waiting, prices.cached_tokens)
