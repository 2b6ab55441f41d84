"""Chooses the next token. Its randomness is a function of (seed, position) and nothing else,
so a request that moves to another instance continues as if nothing had happened."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.logit_changes import LogitChanges
from shared.engine.logprobs import TokenLogprobs, token_logprobs
from shared.engine.sampling_params import SamplingParams
from shared.engine.token_order import largest

_MAX_SEED = 2**64
# Nearly every draw falls among the first few; more are put in order only when one does not.
_HEAD_TOKENS = (256, 4096)

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampled:
    token: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Chooses the tokens of one answer, in order. `answer`: its tokens so far."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_tokens: Iterable[int] = (),
        answer: Iterable[int] = (),
    ) -> None:
        self.params = params
        self._changes = (
            LogitChanges(params, prompt_tokens, answer) if params.changes_logits else None
        )

    @property
    def takes_argmax(self) -> bool:
        """Whether the choice is the model's own most likely token."""
        return self._changes is None and self.params.is_greedy

    def choose(self, logits: Logits, position: int) -> Sampled:
        """The token for `position`; it counts as given from here on."""
        values = logits if self._changes is None else self._changes.applied(logits)
        if self.params.is_greedy:
            token = int(values.argmax())
        else:
            token = _draw(values, self.params, _uniform(self.params.seed, position))
        if self._changes is not None:
            self._changes.note(token)
        return self.chosen(logits, token)

    def chosen(self, logits: Logits, token: int) -> Sampled:
        """With the log probabilities that the request asks for."""
        num_top = self.params.top_logprobs
        if num_top is None:
            return Sampled(token)
        return Sampled(token, token_logprobs(logits, token, num_top))


def choose_each(logits: torch.Tensor, rows: Sequence[tuple[int, Sampler, int]]) -> list[Sampled]:
    """(row of `logits`, sampler, position) of each answer; greedy ones share one pass."""
    values = logits.numpy()
    likeliest = values.argmax(axis=1) if any(one.takes_argmax for _, one, _ in rows) else None
    return [
        sampler.chosen(values[row], int(likeliest[row]))
        if likeliest is not None and sampler.takes_argmax
        else sampler.choose(values[row], position)
        for row, sampler, position in rows
    ]


def sample(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """One token from logits [vocab], of an answer that has no tokens yet."""
    return Sampler(params).choose(logits.float().numpy(), position).token


def _draw(values: Logits, params: SamplingParams, uniform: float) -> int:
    tokens: npt.NDArray[np.int64] | None = None
    if 0 < params.top_k < len(values):
        tokens = largest(values, params.top_k)
        values = values[tokens]
    weights = _weights(values, float(values.max()), params)
    total = float(weights.sum())
    index = None
    for num_head in (*_HEAD_TOKENS, len(values)):
        if index is None and num_head <= len(values):
            index = _draw_from(largest(values, num_head), weights, total, params, uniform)
    assert index is not None  # all tokens together weigh the total
    return index if tokens is None else int(tokens[index])


def _weights(
    values: Logits, largest_value: float, params: SamplingParams
) -> npt.NDArray[np.float64]:
    """Probabilities as parts of the most likely one's; too small ones are nothing."""
    weights = np.exp((values.astype(np.float64) - largest_value) / params.temperature)
    if params.min_p > 0.0:
        weights[weights < params.min_p] = 0.0
    return weights


def _draw_from(
    ordered: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    total: float,
    params: SamplingParams,
    uniform: float,
) -> int | None:
    """The drawn index; None when it may lie beyond `ordered`, the leading part of all."""
    cumulative = np.cumsum(weights[ordered])
    wanted = params.top_p * total if params.top_p < 1.0 else uniform * total
    is_whole = len(ordered) == len(weights)
    if not is_whole and cumulative[-1] <= wanted:
        return None
    if params.top_p < 1.0:
        num_kept = int(np.searchsorted(cumulative, wanted)) + 1
        cumulative = cumulative[:num_kept]
        wanted = uniform * float(cumulative[-1])
    drawn = int(np.searchsorted(cumulative, wanted, side="right"))
    # Rounding of the sums must not reach a token that is cut off.
    num_possible = int(np.count_nonzero(weights[ordered[: len(cumulative)]]))
    return int(ordered[min(drawn, num_possible - 1)])


def _uniform(seed: int, position: int) -> float:
    """Counter-based, so position n needs no draws before it."""
    bits = np.random.Philox(key=seed % _MAX_SEED, counter=position)
    return float(np.random.Generator(bits).random())
