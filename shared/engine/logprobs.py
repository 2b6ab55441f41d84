"""Log probabilities of the model itself: of its logits before bias, penalties and temperature."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.engine.token_order import largest


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    logprob: float
    """Of the token that was chosen, likely or not."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens at this place, most likely first."""


def token_logprobs(logits: npt.NDArray[np.float32], token: int, num_top: int) -> TokenLogprobs:
    largest_logit = float(logits.max())
    total = np.exp(logits.astype(np.float64) - largest_logit).sum()
    normaliser = largest_logit + float(np.log(total))
    top = largest(logits, num_top) if num_top else np.empty(0, dtype=np.int64)
    return TokenLogprobs(
        float(logits[token]) - normaliser,
        tuple((int(one), float(logits[one]) - normaliser) for one in top),
    )
