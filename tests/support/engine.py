"""Drives an engine as a worker would: prompts on the grid, slots of a pool, greedy answers."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.kv_layout import view_pool
from shared.engine.loaded_model import LoadedModel
from shared.engine.prefill import PrefillEngine
from shared.engine.prompt_scores import PromptScores, ScoreWish


class EngineBench:
    def __init__(self, loaded: LoadedModel, num_slots: int) -> None:
        self.loaded = loaded
        self.layout = loaded.layout
        memory = memoryview(bytearray(num_slots * self.layout.block_bytes))
        self.pool = view_pool(memory, self.layout, num_slots)
        self.prefill_engine = PrefillEngine(
            loaded.model, self.pool, self.layout, loaded.grid_tokens
        )

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.layout.block_tokens)

    def prefill(
        self, tokens: Sequence[int], slots: Sequence[int], cached_tokens: int = 0
    ) -> torch.Tensor:
        """Logits after the prompt; its first `cached_tokens` are in `slots` already."""
        ids = np.array(tokens, dtype=np.int32)
        logits = None
        for start in range(cached_tokens, len(ids), self.loaded.grid_tokens):
            logits = self.chunk(ids, start, slots)
        assert logits is not None
        return logits

    def chunk(
        self,
        ids: npt.NDArray[np.int32],
        start: int,
        slots: Sequence[int],
        wish: ScoreWish | None = None,
        on_scores: Callable[[PromptScores], None] | None = None,
    ) -> torch.Tensor | None:
        part = ids[start : start + self.loaded.grid_tokens]
        first = start // self.layout.block_tokens
        own = slots[first : first + self.num_blocks(len(part))]
        return self.prefill_engine.prefill_chunk(
            part, start, slots[:first], own, wish=wish, on_scores=on_scores
        )

    def kv(self, slots: Sequence[int], num_tokens: int) -> torch.Tensor:
        """[layer, 2, token, kv_head, head_dim] of a prompt, as plain memory."""
        blocks = self.pool[list(slots[: self.num_blocks(num_tokens)])]
        return blocks.permute(1, 2, 0, 3, 4, 5).flatten(2, 3)[:, :, :num_tokens].clone()

    def join(
        self, decode: DecodeEngine, seq_id: str, slots: Sequence[int], num_tokens: int, room: int
    ) -> None:
        decode.add(seq_id, num_tokens + room)
        block_tokens = self.layout.block_tokens
        for start in range(0, num_tokens, block_tokens):
            count = min(block_tokens, num_tokens - start)
            decode.load_block(seq_id, self.pool, slots[start // block_tokens], start, count)

    def greedy(self, tokens: Sequence[int], slots: Sequence[int], max_tokens: int) -> list[int]:
        logits = self.prefill(tokens, slots)
        decode = DecodeEngine(self.loaded.model, self.layout, len(tokens) + max_tokens)
        self.join(decode, "only", slots, len(tokens), max_tokens)
        answer = [int(logits.argmax())]
        while len(answer) < max_tokens and answer[-1] not in self.loaded.config.eos_token_ids:
            position = len(tokens) + len(answer) - 1
            answer.append(int(decode.step([("only", answer[-1], position)])[0].argmax()))
        return answer


def random_tokens(count: int, seed: int, vocab_size: int = 512) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab_size, count)]
