"""Packed log probabilities: what fits together is taken, anything else refused by name."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shared.messages.common import MAX_TOP, RequestRef
from shared.messages.envelope import decode, encode
from shared.messages.tokens import MAX_SCORED, PromptLogprobs, TokenChunk

NATS_BYTES = 1 << 20


def piece(num_tokens: int, num_top: int) -> PromptLogprobs:
    values = np.arange(num_tokens * num_top, dtype="<f4")
    return PromptLogprobs(
        first=1,
        logprobs=np.arange(num_tokens, dtype="<f4").tobytes(),
        num_top=num_top,
        top_tokens=values.astype("<i4").tobytes(),
        top_logprobs=values.tobytes(),
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_the_largest_piece_fits_a_message_of_nats(as_json: bool) -> None:
    ref = RequestRef(request_id="r" * 128, gateway="g" * 128, gateway_incarnation="i" * 128)
    chunk = TokenChunk(ref=ref, stage="prefill", index=0, prompt=piece(MAX_SCORED, MAX_TOP))
    packed = encode(chunk, as_json=as_json)
    assert decode(packed, TokenChunk) == chunk
    assert len(packed) < NATS_BYTES


def test_a_piece_says_how_many_tokens_it_is_of() -> None:
    assert piece(3, 2).num_tokens == 3
    assert piece(3, 0).num_tokens == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"logprobs": b""}, "logprobs"),
        ({"logprobs": bytes(9)}, "logprobs"),
        ({"logprobs": bytes(4 * MAX_SCORED + 4)}, "logprobs"),
        ({"logprobs": bytes(8)}, "top_tokens"),
        ({"top_tokens": bytes(4)}, "top_tokens"),
        ({"top_logprobs": bytes(4)}, "top_logprobs"),
        ({"num_top": MAX_TOP + 1}, "num_top"),
        ({"first": 0}, "first"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        PromptLogprobs(**{**piece(3, 2).model_dump(), **changes})
