"""The paper's Algorithm 1: fetch the best prefix where it is worth it, take the lowest TTFT."""

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.pricing import Prices, cheapest_first, offer_of, price_local
from shared.scheduling.situation import Situation
from shared.scheduling.vocabulary import NodeMatch


class GlobalCacheAware:
    name = "global_cache_aware"

    def rank(self, situation: Situation) -> Prices:
        prices = price_local(situation)
        best = best_match(situation)
        if best is not None:
            is_worth = is_worth_fetching(situation, prices, best)
            link_s = situation.cost.transfer_many_s
            best_tokens = situation.usable_tokens(
                min(best.num_blocks, situation.request.num_blocks)
            )
            missing = np.maximum(best_tokens - prices.at_hand, 0)
            # The own disk is read at the same time.
            load_s = np.maximum(link_s(missing * situation.facts.token_bytes), prices.disk_s)
            fetched = offer_of(situation, best_tokens, load_s, (best,))
            prices.take(fetched, is_worth, prices.cost_s)
        return cheapest_first(prices, prices.load_s + prices.queue_s + prices.compute_s)


def best_match(situation: Situation) -> NodeMatch | None:
    """FindBestPrefixMatch: the node with the longest match; equals share the fetches at random."""
    longest = max((match.num_blocks for match in situation.matches.values()), default=0)
    if not longest:
        return None
    holders = [match for match in situation.matches.values() if match.num_blocks == longest]
    return situation.rng.choice(sorted(holders, key=lambda match: match.node))


def is_worth_fetching(situation: Situation, prices: Prices, best: NodeMatch) -> NDArray[np.bool_]:
    """best_len / prefix_len > threshold; with nothing local the ratio is infinite."""
    best_len = situation.usable_tokens(min(best.num_blocks, situation.request.num_blocks))
    prefix_len = prices.at_hand
    return np.logical_and(
        best_len > prefix_len, best_len > situation.balancing_threshold * prefix_len
    )
