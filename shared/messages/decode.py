"""Asked of one decode instance: the run, KV that is ready, the hand-over."""

from typing import Annotated

from pydantic import Field

from shared.messages.bill import Reuse, Times
from shared.messages.common import (
    CacheMode,
    ErrorInfo,
    FetchSource,
    InstanceRef,
    NodeRef,
    PackedKeys,
    PackedTokens,
    RequestRef,
    Sampling,
    Traceparent,
)
from shared.messages.envelope import Message, Part


class DecodeRun(Message):
    """Expect this request's KV, then generate. Sent together with PrefillRun."""

    ref: RequestRef
    incarnation: str
    model: str
    num_tokens: Annotated[int, Field(ge=1)]
    chain: PackedKeys
    sampling: Sampling
    prefill: InstanceRef
    source: FetchSource | None = None
    """Cached prefix blocks that may be pulled while prefill runs."""
    cache: CacheMode = "on"
    given_tokens: PackedTokens = b""
    """Tokens the client has already: fed through the decode path, not sent again."""
    reply_subject: str
    remaining_ms: Annotated[int, Field(ge=0)]
    traceparent: Traceparent = ""


class KvBlock(Part):
    """One block of the prompt in the prefill node's pool, held there until the hand-over ends."""

    index: Annotated[int, Field(ge=0)]
    slot: Annotated[int, Field(ge=0)]
    generation: Annotated[int, Field(ge=0)]
    valid_tokens: Annotated[int, Field(ge=1)]
    checksum: Annotated[int, Field(ge=0)] = 0
    """xxh3-64 of the valid bytes; 0 while layers are still missing."""
    is_sealed: bool = False


class KvReady(Message):
    """Layers [first_layer, end_layer) of one block are complete. A hint: Handoff is the word."""

    ref: RequestRef
    node: NodeRef
    block: KvBlock
    first_layer: Annotated[int, Field(ge=0)]
    end_layer: Annotated[int, Field(ge=1)]
    prefill: str = ""
    """Incarnation of who computes; empty: from before it was told."""


class Handoff(Message):
    """All KV of the prompt is there and token 0 is known. Answered when decode holds all of it.

    After the answer the prefill instance frees what it held for the request.
    """

    ref: RequestRef
    node: NodeRef
    blocks: list[KvBlock]
    """All blocks of the prompt in order, cached ones too."""
    first_token: int
    seen_tokens: PackedTokens = b""
    """State of the sampler: the different tokens of the prompt, when a repetition penalty
    needs them. All else of its state follows from the answer's tokens."""
    times: Times
    reuse: Reuse
    prefill: str = ""
    """Incarnation of who computed it: only the one that the run names counts."""
    traceparent: Traceparent = ""


class Judge(Message):
    """The prompt is computed: would decode keep to this TBT with it? Asked before token 0 is given,
    where admission leaves that to the decode instance (`baseline`)."""

    ref: RequestRef
    allowed_tbt_ms: Annotated[float, Field(gt=0)]
    traceparent: Traceparent = ""


class JudgeReply(Message):
    """The same to whoever asks again."""

    refusal: ErrorInfo | None = None
    """With what was predicted and what is allowed. None: it is let in."""


class HandoffReply(Message):
    """What moved to the decode node."""

    streamed_bytes: int = 0
    stream_s: float = 0.0
    hidden_bytes: int = 0
    tail_s: float = 0.0
    transport: str = "none"
