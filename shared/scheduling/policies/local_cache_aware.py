"""Lowest TTFT with what each instance's own node holds; nothing is fetched."""

from shared.scheduling.pricing import Prices, cheapest_first, price_local
from shared.scheduling.situation import Situation


class LocalCacheAware:
    name = "local_cache_aware"

    def rank(self, situation: Situation) -> Prices:
        return cheapest_first(price_local(situation))
