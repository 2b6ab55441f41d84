"""Any instance; the floor that other policies are compared with."""

from shared.scheduling.pricing import Situation, price
from shared.scheduling.vocabulary import Candidate


class RandomChoice:
    name = "random"

    def rank(self, situation: Situation) -> list[Candidate]:
        by_id = sorted(situation.prefills, key=lambda instance: instance.key)
        situation.rng.shuffle(by_id)
        return [price(situation, instance, None) for instance in by_id]
