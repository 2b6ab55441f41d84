"""What a driver tells the conductor's core."""

from dataclasses import dataclass

from shared.scheduling.quarantine import Outcome
from shared.scheduling.vocabulary import (
    InstanceKey,
    InstanceView,
    NodeMatch,
    PlacementRequest,
    PredictedTimes,
    Role,
)


@dataclass(frozen=True, slots=True)
class PlaceAsked:
    """`place_id` is the driver's, never used twice."""

    place_id: int
    request: PlacementRequest
    matches: tuple[NodeMatch, ...] = ()


@dataclass(frozen=True, slots=True)
class ReserveAnswered:
    place_id: int
    role: Role
    instance: InstanceKey
    is_accepted: bool
    reason: str = ""
    expected_start_s: float = 0.0
    retry_after_s: float | None = None
    has_run: bool = False
    """The run that went with it goes on there."""


@dataclass(frozen=True, slots=True)
class ReserveFailed:
    """No answer. `is_gone`: nobody listens; else it was silent and may have accepted."""

    place_id: int
    role: Role
    instance: InstanceKey
    is_gone: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class InstanceReported:
    instance: InstanceView


@dataclass(frozen=True, slots=True)
class NodeReported:
    """What a node's pool still has to send and receive."""

    node: tuple[str, str]
    """(id, incarnation)"""
    bytes_in_flight: int


@dataclass(frozen=True, slots=True)
class AskedElsewhere:
    """Another conductor asks an instance for a promise: load that its reports do not show yet."""

    model: str
    role: Role
    instance: InstanceKey
    num_tokens: int
    max_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class InstanceLost:
    role: Role
    instance: InstanceKey


@dataclass(frozen=True, slots=True)
class BillFinished:
    """Real times of a request that is done."""

    model: str
    num_tokens: int
    cached_tokens: int
    compute_s: float
    """Without the log probabilities of the prompt: no other request takes that time."""
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    disk_bytes: int = 0
    disk_s: float = 0.0
    streamed_bytes: int = 0
    stream_s: float = 0.0
    tbt_s: float = 0.0
    decode_s: float = 0.0
    """From token 0 to the last; 0: not known."""
    predicted: PredictedTimes | None = None
    real: PredictedTimes | None = None
    ttft_s: float = 0.0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutcomeSeen:
    """How a piece of work went that somebody had from an instance or a node."""

    service: str
    """prefill, decode or transfer."""
    party: tuple[str, str]
    """(id, incarnation)"""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of `next_deadline_s` has come."""


Event = (
    PlaceAsked
    | ReserveAnswered
    | ReserveFailed
    | InstanceReported
    | NodeReported
    | AskedElsewhere
    | InstanceLost
    | BillFinished
    | OutcomeSeen
    | TimerFired
)
