"""The least work waiting, whatever is cached (load balancing in the paper's comparison)."""

from shared.scheduling.pricing import Prices, cheapest_first, price_local
from shared.scheduling.situation import Situation, backlogs_s


class LeastLoaded:
    name = "least_loaded"

    def rank(self, situation: Situation) -> Prices:
        return cheapest_first(price_local(situation), backlogs_s(situation))
