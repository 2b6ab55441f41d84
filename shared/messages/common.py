"""Parts that several message families share."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from shared.messages.envelope import Message, Part

Token = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]
"""An id that is one token of a NATS subject."""
PackedKeys = bytes
"""Block keys of a chain, 16 bytes each, root first."""
PackedTokens = bytes
"""Token ids, int32 little endian."""
TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
Namespace = Annotated[bytes, Field(max_length=16)]
"""Part of the seed of a chain (`block_keys.seed_of`): other namespaces share no block."""
MAX_TOP = 20
"""Likely tokens beside each one, when log probabilities are asked for."""
Traceparent = Annotated[str, Field(max_length=64)]
"""W3C trace context of the request; empty when it has none."""
CacheMode = Literal["on", "write", "off"]
"""write: publish, but read nothing; off: neither of the two, the cold reference."""


class ErrorCode(StrEnum):
    """Why a request or an operation failed; the gateway maps these to HTTP once."""

    BAD_REQUEST = "bad_request"
    UNKNOWN_MODEL = "unknown_model"
    CONTEXT_EXCEEDED = "context_exceeded"
    OVERLOADED = "overloaded"
    NO_INSTANCE = "no_instance"
    UNKNOWN_INSTANCE = "unknown_instance"
    VOID_INCARNATION = "void_incarnation"
    DRAINING = "draining"
    NOT_RESERVED = "not_reserved"
    KV_LOST = "kv_lost"
    PEER_LOST = "peer_lost"
    POOL_LOST = "pool_lost"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    FORMAT_MISMATCH = "format_mismatch"
    INTERNAL = "internal"


class Targets(Part):
    """What a refusal compared, in seconds; None where there is no such target."""

    predicted_ttft_s: float | None = None
    predicted_tbt_s: float | None = None
    allowed_ttft_s: float | None = None
    allowed_tbt_s: float | None = None


class ErrorInfo(Part):
    """One clear error: what, where, whether another try may help, and when."""

    code: ErrorCode
    message: str
    field: str | None = None
    is_retryable: bool = False
    retry_after_s: float | None = None
    targets: Targets | None = None
    """Of a refusal because a target would be missed."""


class RequestRef(Part):
    """Names one attempt at a request and the gateway that owns it."""

    request_id: Token
    attempt: Annotated[int, Field(ge=0)] = 0
    gateway: Token
    gateway_incarnation: Token

    @property
    def handle(self) -> str:
        """The name under which promises, slots and leases of this attempt are held."""
        return f"{self.request_id}/{self.attempt}"


class InstanceRef(Part):
    """One incarnation of a prefill or decode instance and the node whose pool it uses."""

    id: Token
    incarnation: Token
    node: Token


class NodeRef(Part):
    """One incarnation of a node."""

    id: Token
    incarnation: Token


class Sampling(Part):
    """How tokens are chosen. Randomness is a function of (seed, position) only.

    Presence and frequency penalties count the answer's tokens, repetition the prompt's too.
    """

    max_tokens: Annotated[int, Field(ge=0)]
    """0: the prompt is computed and nothing is chosen."""
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    logit_bias: list[tuple[TokenId, Bias]] = []
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    """Log probabilities of each token and of so many likely ones; None: not wanted."""
    seed: int = 0
    ignore_eos: bool = False


class Replica(Part):
    """One node that holds the leading `num_blocks` of a chain."""

    node: NodeRef
    num_blocks: Annotated[int, Field(ge=1)]


class FetchSource(Replica):
    """Where the leading blocks of a chain can be read; `others` hold them, too, or some of them."""

    others: list[Replica] = []


class Empty(Message):
    """A request without arguments."""


class Ok(Message):
    """Done; nothing to say."""
