"""Chooses the next token. Its randomness is a function of (seed, position) and nothing else,
so a request that moves to another instance continues as if nothing had happened."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_MAX_SEED = 2**64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature: {self.temperature} is below 0")
        if self.top_k < 0:
            raise ValueError(f"top_k: {self.top_k} is below 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: {self.top_p} is not in (0, 1]")


def sample(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The token for `position`, from logits [vocab]. Temperature 0 is greedy."""
    values = logits.float().numpy()
    if params.temperature == 0.0:
        return int(values.argmax())
    tokens = _top_k(values, params.top_k)
    scaled = values[tokens].astype(np.float64) / params.temperature
    # Most likely first; equal ones by id, so the order is the same everywhere.
    order = np.lexsort((tokens, -scaled))
    tokens, scaled = tokens[order], scaled[order]
    weights = np.exp(scaled - scaled[0])
    cumulative = np.cumsum(weights)
    if params.top_p < 1.0:
        num_kept = int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1
        tokens, cumulative = tokens[:num_kept], cumulative[:num_kept]
    drawn = _uniform(params.seed, position) * cumulative[-1]
    chosen = int(np.searchsorted(cumulative, drawn, side="right"))
    return int(tokens[min(chosen, len(tokens) - 1)])


def _top_k(values: npt.NDArray[np.float32], top_k: int) -> npt.NDArray[np.int64]:
    if not 0 < top_k < len(values):
        return np.arange(len(values))
    kept = np.argpartition(-values, top_k - 1)[:top_k]
    return kept.astype(np.int64)


def _uniform(seed: int, position: int) -> float:
    """Counter-based, so position n needs no draws before it."""
    bits = np.random.Philox(key=seed % _MAX_SEED, counter=position)
    return float(np.random.Generator(bits).random())
