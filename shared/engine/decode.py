"""Decodes a continuous batch from its own device cache. Never reads the pool while it steps."""

from collections.abc import Sequence

import torch

from shared.engine.kv_layout import KvLayout
from shared.engine.model import LlamaModel


class DecodeEngine:
    def __init__(self, model: LlamaModel, layout: KvLayout, capacity_tokens: int) -> None:
        raise NotImplementedError

    def can_add(self, num_tokens: int) -> bool:
        raise NotImplementedError

    def add(self, seq_id: str, num_tokens_capacity: int) -> None:
        raise NotImplementedError

    def load_block(
        self, seq_id: str, pool: torch.Tensor, slot: int, start: int, num_tokens: int
    ) -> None:
        """Copies the first `num_tokens` of a block to positions `start`... of the sequence."""
        raise NotImplementedError

    def step(self, batch: Sequence[tuple[str, int, int]]) -> torch.Tensor:
        """(seq_id, token, position) of each sequence to logits [B, vocab] of what follows."""
        raise NotImplementedError

    def remove(self, seq_id: str) -> None:
        raise NotImplementedError
