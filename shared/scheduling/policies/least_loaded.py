"""The shortest queue, whatever is cached (load balancing in the paper's comparison)."""

from dataclasses import replace

from shared.scheduling.pricing import Situation, ordered, price
from shared.scheduling.vocabulary import Candidate


class LeastLoaded:
    name = "least_loaded"

    def rank(self, situation: Situation) -> list[Candidate]:
        candidates = [price(situation, instance, None) for instance in situation.prefills]
        by_queue = [replace(c, cost_s=c.predicted.queue_s) for c in candidates]
        return ordered(by_queue, situation.rng)
