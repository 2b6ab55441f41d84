"""What a policy is. It orders candidates and decides nothing else."""

from typing import Protocol

from shared.scheduling.pricing import Prices
from shared.scheduling.situation import Situation


class PlacementPolicy(Protocol):
    """May keep state of its own (round-robin does); draws randomness only from the situation."""

    name: str

    def rank(self, situation: Situation) -> Prices:
        """All of `situation.rows` priced, each once; `order` set: the wanted ones, best first."""
