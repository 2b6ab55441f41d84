"""One after the other, by id."""

from shared.scheduling.pricing import Situation, price
from shared.scheduling.vocabulary import Candidate


class RoundRobin:
    """Remembers the last id, not a position: instances may come and go."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last_id = ""

    def rank(self, situation: Situation) -> list[Candidate]:
        by_id = sorted(situation.prefills, key=lambda instance: instance.key)
        after = [instance for instance in by_id if instance.id > self._last_id]
        turn = after + by_id[: len(by_id) - len(after)]
        if turn:
            self._last_id = turn[0].id
        return [price(situation, instance, None) for instance in turn]
