"""Ours: every way to serve the prompt, priced with what it costs this request and the others.

A candidate may compute from what is at hand, or fetch more of the prefix first: from several
depths of match, as much as its queue hides, or all of it. A fetch overlaps the queue, waits for
what the senders and the receiver move already, and stops where recomputing is faster. The price is
the request's own TTFT, the delay it brings to those that it will be served before, and what the way
to decode costs (pairing).
"""

from shared.scheduling.expected_prefix import offer_expected
from shared.scheduling.fetching import offer, senders_by_depth
from shared.scheduling.pairing import add_pair_costs
from shared.scheduling.pricing import Prices, cheapest_first, price_local
from shared.scheduling.situation import Situation


class Moonpool:
    name = "moonpool"

    def rank(self, situation: Situation) -> Prices:
        prices = price_local(situation)
        prices.cost_s = prices.offers[0].cost_s()
        for senders in senders_by_depth(situation):
            offer(prices, senders)
            is_idle = senders.waiting_bytes == 0
            if is_idle and len(senders.holders) == situation.max_sources:
                break  # others hold less and would be no faster
        offer_expected(prices)
        add_pair_costs(prices)
        return cheapest_first(prices)
