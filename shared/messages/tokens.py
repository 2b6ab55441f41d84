"""What a gateway's inbox receives: the tokens of an attempt and how its stages went."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shared.messages.bill import Reuse, Times
from shared.messages.common import MAX_TOP, ErrorInfo, PackedTokens, RequestRef
from shared.messages.envelope import Message, Part

FinishReason = Literal["stop", "length"]
MAX_SCORED = 4_096
"""Tokens of one `PromptLogprobs`: with all likely ones less than 0.7 MB, and NATS takes 1 MB."""
VALUE_BYTES = 4


class TokenLogprobs(Part):
    """Log probabilities at one place of the answer, of the model's own distribution."""

    logprob: float
    """Of the token that was chosen."""
    top: list[tuple[int, float]] = []
    """The most likely tokens, most likely first."""


class PromptLogprobs(Part):
    """Log probabilities of the prompt's tokens at `first`, `first` + 1, …, each after those before
    it; the first token of a prompt has none. Packed, little endian, like tokens."""

    first: Annotated[int, Field(ge=1)]
    logprobs: Annotated[bytes, Field(max_length=MAX_SCORED * VALUE_BYTES)]
    """float32, one for each token."""
    num_top: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0
    top_tokens: PackedTokens = b""
    """The most likely tokens of each place, most likely first: `num_top` of each."""
    top_logprobs: bytes = b""
    """float32, of those."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        size = len(self.logprobs)
        if not size or size % VALUE_BYTES:
            raise ValueError(f"logprobs: {size} bytes are no float32 values, or none")
        for name, packed in (("top_tokens", self.top_tokens), ("top_logprobs", self.top_logprobs)):
            if len(packed) != size * self.num_top:
                raise ValueError(f"{name}: {len(packed)} bytes, {size * self.num_top} are needed")
        return self

    @property
    def num_tokens(self) -> int:
        return len(self.logprobs) // VALUE_BYTES


class TokenChunk(Message):
    """Tokens `index`, `index`+1, … of the answer; token 0 comes from prefill.

    The last chunk has `finish_reason` or `error`. Chunks may repeat; a gap means a lost message.
    """

    ref: RequestRef
    stage: Literal["prefill", "decode"]
    incarnation: str = ""
    """Of the instance that sends it: one that was asked and not chosen may have begun, too."""
    index: Annotated[int, Field(ge=0)]
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    """One for each token, when the request asks for them."""
    prompt: PromptLogprobs | None = None
    """Of prefill, before token 0, when the request asks for them."""
    finish_reason: FinishReason | None = None
    error: ErrorInfo | None = None
    times: Times | None = None
    """Real times of the stage; prefill sends them with token 0, decode with its last chunk."""
    reuse: Reuse | None = None
