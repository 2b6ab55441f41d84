"""The least work waiting, whatever is cached (load balancing in the paper's comparison)."""

from shared.scheduling.pricing import Prices, Situation, backlogs_s, cheapest_first, price_local


class LeastLoaded:
    name = "least_loaded"

    def rank(self, situation: Situation) -> Prices:
        return cheapest_first(price_local(situation), backlogs_s(situation))
