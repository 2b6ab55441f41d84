"""Chooses the next token. Its randomness is a function of (seed, position) and nothing else."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    seed: int = 0


def sample(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The token for `position`, from logits [vocab]. Temperature 0 is greedy."""
    raise NotImplementedError
