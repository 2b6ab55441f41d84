"""What a gateway's inbox receives: the tokens of an attempt and how its stages went."""

from typing import Annotated, Literal

from pydantic import Field

from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorInfo, RequestRef
from shared.messages.envelope import Message, Part

FinishReason = Literal["stop", "length"]


class TokenLogprobs(Part):
    """Log probabilities at one place of the answer, of the model's own distribution."""

    logprob: float
    """Of the token that was chosen."""
    top: list[tuple[int, float]] = []
    """The most likely tokens, most likely first."""


class TokenChunk(Message):
    """Tokens `index`, `index`+1, … of the answer; token 0 comes from prefill.

    The last chunk has `finish_reason` or `error`. Chunks may repeat; a gap means a lost message.
    """

    ref: RequestRef
    stage: Literal["prefill", "decode"]
    index: Annotated[int, Field(ge=0)]
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    """One for each token, when the request asks for them."""
    finish_reason: FinishReason | None = None
    error: ErrorInfo | None = None
    times: Times | None = None
    """Real times of the stage; prefill sends them with token 0, decode with its last chunk."""
    reuse: Reuse | None = None
