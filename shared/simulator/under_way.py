"""A request of the simulator on its way."""

from dataclasses import dataclass, field

from shared.kv.ids import BlockKey
from shared.scheduling.events import PlaceAsked
from shared.scheduling.vocabulary import PlacementDecision
from shared.simulator.outcome import RequestOutcome
from shared.simulator.trace import TraceRequest
from shared.simulator.virtual_node import VirtualNode


@dataclass(slots=True)
class UnderWay:
    """A request under way."""

    number: int
    trace: TraceRequest
    keys: list[BlockKey]
    outcome: RequestOutcome
    decode: str = ""
    asked: PlaceAsked | None = None
    decision: PlacementDecision | None = None
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    token0_s: float = 0.0
    is_joined: bool = False
    judged_tbt_s: float | None = None
    """What its decode instance must keep to when the prefill is done (`baseline`)."""
    joined_step_s: float = 0.0
    """What the prior says of the batch that it was let in to."""
    held_at: list[VirtualNode] = field(default_factory=list)

    @property
    def handle(self) -> str:
        return str(self.number)
