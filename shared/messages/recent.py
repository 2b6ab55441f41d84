"""Requests that ended of late, as the gateway that served them kept them, with what was decided."""

from typing import Annotated, Literal, Self

from pydantic import Field

from shared.messages.bill import FinishedBill
from shared.messages.common import ErrorInfo
from shared.messages.conductor import Candidate, Placement, PlaceReply
from shared.messages.envelope import Message, Part

KEPT_REQUESTS = 1_000
"""Of each gateway, and of whoever shows them."""
Ending = Literal["finished", "refused", "failed", "cancelled"]
"""refused: it never ran, or decode refused it when its prefill was done; failed: it ran and ended
with an error; cancelled: its client left."""


class Decision(Part):
    """What a conductor answered for one attempt."""

    attempt: int = 0
    placement: Placement | None = None
    refusal: ErrorInfo | None = None
    losers: list[Candidate] = []
    """The best of them; `counts` has all."""
    counts: dict[str, int] = {}
    """Candidates by reason for losing."""

    @classmethod
    def of(cls, attempt: int, reply: PlaceReply) -> Self:
        """The refusal carries its targets."""
        refusal = reply.refusal
        if refusal is not None:
            refusal = refusal.model_copy(update={"targets": reply.targets})
        return cls(
            attempt=attempt,
            placement=reply.placement,
            refusal=refusal,
            losers=reply.losers,
            counts=reply.counts,
        )


class EndedRequest(Message):
    """One request and how it ended."""

    number: Annotated[int, Field(ge=1)]
    """Counts the requests of one gateway incarnation without gaps."""
    ended_ms: int
    """By the gateway's own clock; see `RecentReply.now_ms`."""
    took_s: float = 0.0
    """From the whole request to its end."""
    request_id: str
    client_id: str
    """As the client called it."""
    model: str
    ending: Ending
    error: ErrorInfo | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    wasted_prefill_s: float = 0.0
    """Of a request that decode refused: what computing its prompt took."""
    tenant: str = ""
    user: str | None = None
    ttft_slo_ms: float | None = None
    tbt_slo_ms: float | None = None
    """Targets of this request; the deployment's own hold beside them."""
    bill: FinishedBill | None = None
    decisions: list[Decision] = []


class RecentRequest(Message):
    """The first `limit` requests after number `after` that are still kept."""

    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=0, le=250)] = 50


class RecentReply(Message):
    gateway: str
    incarnation: str
    now_ms: int
    """The clock of `ended_ms`."""
    newest: int = 0
    """Number of the last request that ended."""
    requests: list[EndedRequest] = []
    """May be fewer than asked for: an answer fits one message."""
