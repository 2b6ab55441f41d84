"""What a policy is. It orders candidates and decides nothing else."""

from typing import Protocol

from shared.scheduling.pricing import Situation
from shared.scheduling.vocabulary import Candidate


class PlacementPolicy(Protocol):
    """May keep state of its own (round-robin does); draws randomness only from the situation."""

    name: str

    def rank(self, situation: Situation) -> list[Candidate]:
        """All of `situation.prefills`, each once, best first."""
