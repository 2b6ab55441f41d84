"""Asked of one prefill instance."""

from typing import Annotated

from pydantic import Field

from shared.messages.common import (
    MAX_TOP,
    CacheMode,
    FetchSource,
    InstanceRef,
    Namespace,
    PackedKeys,
    PackedTokens,
    RequestRef,
    Sampling,
    Traceparent,
)
from shared.messages.envelope import Message


class UnplacedRun(Message):
    """What a gateway knows of a run before it is placed.

    It travels packed, in `PlaceRequest.run` and `Reserve.run`; conductors do not look into it.
    """

    model: str
    tokens: PackedTokens
    sampling: Sampling
    reply_subject: str
    namespace: Namespace = b""


class Reserve(Message):
    """A promise of room: prefill counts prompt tokens, decode prompt and answer tokens.

    Ends after `ttl_ms` unless a run came. With `source` the prefill node fetches at once.
    """

    ref: RequestRef
    incarnation: str
    num_tokens: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=0)]
    """0: of a prefill instance only."""
    cached_tokens: Annotated[int, Field(ge=0)] = 0
    chain: PackedKeys = b""
    source: FetchSource | None = None
    cache: CacheMode = "on"
    ttl_ms: Annotated[int, Field(ge=1)] = 2_000
    ttft_slo_ms: Annotated[float | None, Field(gt=0)] = None
    """What is left for TTFT: a queue that is not in order of arrival keeps to it."""
    run: bytes = b""
    """A packed `UnplacedRun`: a prefill instance that accepts starts it at once, as if `run` had
    come. Empty: the run comes later, by `run`."""
    decode: InstanceRef | None = None
    """With `run`: who takes the prompt over."""
    remaining_ms: Annotated[int, Field(ge=0)] = 0
    """With `run`: what the request has left."""
    judged_tbt_ms: Annotated[float | None, Field(gt=0)] = None
    """Prefill: before it gives token 0 it asks decode whether this TBT would be kept to (the
    admission rule `baseline`)."""
    traceparent: Traceparent = ""


class ReserveReply(Message):
    """The instance is the authority on its own queue."""

    is_accepted: bool
    reason: str = ""
    expected_start_s: float = 0.0
    retry_after_s: float | None = None
    has_run: bool = False
    """The run that came with the reservation goes on here, for the decode instance named there."""


class PrefillRun(Message):
    """Compute the prompt's KV, sample token 0, hand over to `decode`.

    Without `decode` the answer ends here: with token 0, or before it. Of a run that goes on
    already only a change of `decode` counts.
    """

    ref: RequestRef
    incarnation: str
    model: str
    tokens: PackedTokens
    chain: PackedKeys
    sampling: Sampling
    decode: InstanceRef | None = None
    source: FetchSource | None = None
    cache: CacheMode = "on"
    reply_subject: str
    remaining_ms: Annotated[int, Field(ge=0)]
    is_resume: bool = False
    """The client has token 0 already: it is handed to decode, not sent again."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    """Send the log probabilities of the prompt's tokens and of so many likely ones at each place,
    before token 0. Needs every position computed: no cached block is read."""
    namespace: Namespace = b""
    traceparent: Traceparent = ""


class Cancel(Message):
    """The attempt is over for its gateway: stop, free everything. Unknown ones are ignored."""

    ref: RequestRef
    traceparent: Traceparent = ""
