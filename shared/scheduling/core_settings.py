"""Settings of the conductor's core."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.scheduling.admission import DEFAULT_RULE, AdmissionRule
from shared.scheduling.cost_model import CostProfile
from shared.scheduling.policies.registry import DEFAULT_POLICY
from shared.scheduling.slo import NO_SLO, Slo


@dataclass(frozen=True, slots=True)
class CoreSettings:
    policy: str = DEFAULT_POLICY
    balancing_threshold: float = 1.5
    lease_s: float = 3.0
    """An instance silent for longer is not chosen."""
    promise_ttl_s: float = 2.0
    place_timeout_s: float = 1.0
    """Well below the time a promise stands, for the gateway must still come."""
    max_asks: int = 8
    """Reservations asked for one placement, both roles together."""
    max_sources: int = 1
    """Nodes that a prefix is fetched from at once; services set it to 2."""
    profile: CostProfile = field(default_factory=CostProfile)
    admission: AdmissionRule = DEFAULT_RULE
    slo: Slo = NO_SLO
    """Targets of every request, beside its own; without any nothing is refused for them."""
    model_slos: Mapping[str, Slo] = field(default_factory=dict)
    decode_time_s: float = 10.0
    """How long a request is taken to decode until bills tell."""
