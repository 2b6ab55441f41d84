"""Told to every conductor: how work went that somebody had from an instance or a node."""

from typing import Annotated, Literal

from pydantic import Field

from shared.messages.common import Token
from shared.messages.envelope import Message, Part

MAX_ITEMS = 1_024


class OutcomeItem(Part):
    """One piece of work: a run of an attempt, a read of blocks."""

    service: Literal["prefill", "decode", "transfer"]
    id: Token
    incarnation: Token
    is_good: bool
    took_s: Annotated[float, Field(ge=0)] = 0.0
    expected_s: Annotated[float, Field(ge=0)] = 0.0
    """0: not known."""


class Outcomes(Message):
    """What one gateway or transfer service saw since its last message."""

    witness: Token
    items: Annotated[list[OutcomeItem], Field(max_length=MAX_ITEMS)]


class KeptOutParty(Part):
    """An instance or node that is healthy by its heartbeat and kept out by what others saw."""

    service: Literal["prefill", "decode", "transfer"]
    id: Token
    incarnation: Token
    reason: str
    state: Literal["out", "probed"]
    since_s: float
    """Seconds ago."""
    left_s: float
    """Until it is probed; 0: it is."""
    num_times: int
