"""Lowest TTFT with what each instance's own node holds; nothing is fetched."""

from shared.scheduling.pricing import Situation, ordered, price
from shared.scheduling.vocabulary import Candidate


class LocalCacheAware:
    name = "local_cache_aware"

    def rank(self, situation: Situation) -> list[Candidate]:
        candidates = [price(situation, instance, None) for instance in situation.prefills]
        return ordered(candidates, situation.rng)
