"""What the conductor's core wants done, with its reasons."""

from dataclasses import dataclass

from shared.scheduling.vocabulary import (
    InstanceAddress,
    InstanceKey,
    PlacementDecision,
    PlacementRequest,
    Refusal,
    Role,
    Source,
)


@dataclass(frozen=True, slots=True)
class SendReserve:
    """Ask an instance for a promise of room; answered by ReserveAnswered or ReserveFailed."""

    place_id: int
    role: Role
    instance: InstanceKey
    request: PlacementRequest
    cached_tokens: int
    sources: tuple[Source, ...]
    ttl_s: float
    reason: str
    ttft_slo_s: float | None = None
    """From now on: what the queue of a prefill instance must not make it miss."""
    decode: InstanceAddress | None = None
    """Where the run goes with it: who takes the prompt over."""
    judged_tbt_s: float | None = None
    """Of prefill: decode judges by this target once the prompt is computed, before token 0 is
    given. None: it takes the request as it was placed."""

    @property
    def source(self) -> Source | None:
        return self.sources[0] if self.sources else None


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Give a promise back (it may not exist)."""

    place_id: int
    role: Role
    instance: InstanceKey
    request: PlacementRequest
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerPlaced:
    place_id: int
    decision: PlacementDecision


@dataclass(frozen=True, slots=True)
class AnswerRefused:
    place_id: int
    refusal: Refusal
    counts: tuple[tuple[str, int], ...] = ()
    """Instances by reason for not being taken."""


Effect = SendReserve | SendRelease | AnswerPlaced | AnswerRefused
