"""A placement that was asked for and is not answered yet: whom it waits for."""

from dataclasses import dataclass, field

from shared.scheduling import admission
from shared.scheduling.effects import SendRelease
from shared.scheduling.placement import Ranking
from shared.scheduling.policies.base import PlacementPolicy
from shared.scheduling.slo import Slo
from shared.scheduling.vocabulary import (
    Candidate,
    InstanceAddress,
    InstanceKey,
    InstanceView,
    NodeMatch,
    PlacementRequest,
    Refusal,
    Role,
)


@dataclass(slots=True)
class Side:
    key: InstanceKey
    is_accepted: bool = False
    expected_start_s: float = 0.0
    decode: InstanceAddress | None = None
    """Of a prefill instance that was given the run: whom it hands over to."""
    has_run: bool = False
    """The run goes on there."""

    def is_started_for(self, decode: InstanceView | None) -> bool:
        """False also where the run names one that refused since: the gateway tells the other."""
        return self.has_run and self.decode == (None if decode is None else decode.address)


@dataclass(slots=True)
class OpenPlacement:
    place_id: int
    request: PlacementRequest
    matches: tuple[NodeMatch, ...]
    policy: PlacementPolicy
    allowed: Slo
    """Its targets."""
    deadline_s: float
    ranking: Ranking | None = None
    winner: Candidate | None = None
    sides: dict[Role, Side] = field(default_factory=dict)
    refused: set[InstanceKey] = field(default_factory=set)
    retry_after_s: float | None = None
    num_asks: int = 0

    def release(self, role: Role, key: InstanceKey, reason: str) -> SendRelease:
        return SendRelease(self.place_id, role, key, self.request, reason)

    def overloaded(self, why: str) -> Refusal:
        return Refusal(
            "overloaded",
            f"no pair of instances took the request: {why}",
            is_retryable=True,
            retry_after_s=self.retry_after_s or admission.RETRY_FULL_S,
        )
