"""What can happen to a request, and what shall be done about it: in and out of RequestLife."""

from dataclasses import dataclass
from typing import Literal

from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorInfo, InstanceRef
from shared.messages.conductor import Placement
from shared.messages.tokens import FinishReason, PromptLogprobs, TokenChunk, TokenLogprobs

Stage = Literal["prefill", "decode"]


# --- events ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Placed:
    attempt: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class PlacementRefused:
    attempt: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class RunFailed:
    """An instance did not take the run."""

    attempt: int
    stage: Stage
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    chunk: TokenChunk


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """`is_replaced`: another incarnation has its id, so that it can never come back."""

    incarnation: str
    reason: str
    is_replaced: bool


@dataclass(frozen=True, slots=True)
class InstanceReported:
    """`is_idle`: it says that it has neither queued nor running work."""

    incarnation: str
    is_idle: bool


@dataclass(frozen=True, slots=True)
class StopMatched:
    """The text so far holds a stop string: the answer is complete."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Nobody waits for the answer any more: the client has gone, or the gateway stops."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_deadline_s` is reached."""


Event = (
    Placed
    | PlacementRefused
    | RunFailed
    | ChunkArrived
    | InstanceLost
    | InstanceReported
    | StopMatched
    | Abandoned
    | TimePassed
)


# --- effects -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AskPlacement:
    attempt: int
    exclude: tuple[str, ...]
    is_resume: bool = False
    """The client has tokens already: a target for the first one says nothing any more."""
    needs_scores: bool = False
    """Of the prompt's tokens: no cached prefix helps."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Send the run to both instances and watch them. `given`: tokens the client has already."""

    attempt: int
    placement: Placement
    given: tuple[int, ...]
    needs_scores: bool = False


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """Decode has taken over: what happens to the prefill instance no longer matters."""

    attempt: int


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    attempt: int
    prefill: InstanceRef
    decode: InstanceRef | None
    reason: str


@dataclass(frozen=True, slots=True)
class Blame:
    """An instance failed this request by its own fault, or by its node's."""

    stage: Stage
    instance: InstanceRef


@dataclass(frozen=True, slots=True)
class GivePrompt:
    """Log probabilities of the whole prompt, in order; comes before all tokens of the answer."""

    pieces: tuple[PromptLogprobs, ...]


@dataclass(frozen=True, slots=True)
class GiveTokens:
    """New tokens of the answer, in order, each exactly once."""

    first_index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, when the request asks for them."""


@dataclass(frozen=True, slots=True)
class StageReported:
    """Real times and reuse of a stage, for the bill."""

    attempt: int
    stage: Stage
    times: Times | None
    reuse: Reuse | None


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Fail:
    error: ErrorInfo
    is_after_prefill: bool = False
    """Decode refused it when its prompt was computed."""


Effect = (
    AskPlacement
    | StartRun
    | PrefillDone
    | CancelAttempt
    | Blame
    | GivePrompt
    | GiveTokens
    | StageReported
    | Finish
    | Fail
)
