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
    joined_step_s: float = 0.0
    """What its decode instance expected of the batch when it let it in (`baseline`)."""
    held_at: list[VirtualNode] = field(default_factory=list)

    @property
    def handle(self) -> str:
        return str(self.number)
