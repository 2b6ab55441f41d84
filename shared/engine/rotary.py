"""Cosines and sines of rotary position embedding for every position of the context."""

import torch

from shared.checkpoint.model_config import ModelConfig


class RotaryTable:
    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        # In float32 throughout, as the models were trained.
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies = 1.0 / (config.rope_theta**exponents)
        positions = torch.arange(config.max_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        self._cos = angles.cos().to(dtype)
        self._sin = angles.sin().to(dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each [rows, 1, head_dim / 2]: the same for all heads of a row."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)
