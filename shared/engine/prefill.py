"""Computes the KV of prompt chunks straight into pool slots. Keeps no state between chunks.

A chunk starts at a multiple of the grid and is computed alone, so a hit runs in the very same
shapes as a cold run: equal bits. Requests may be paused, and others run, between two chunks.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.attention import prompt_attention
from shared.engine.errors import Cancelled, EngineError
from shared.engine.kv_layout import GRID_TOKENS, KvLayout
from shared.engine.model import LlamaModel

# Of torch's kernels a single row takes another one, with other bits; two or more agree.
_MIN_ROWS = 2


def _never() -> bool:
    return False


class PrefillEngine:
    """For one thread at a time: the scratch memory is its own, the pool is the caller's."""

    def __init__(
        self,
        model: LlamaModel,
        pool: torch.Tensor,
        layout: KvLayout,
        grid_tokens: int | None = None,
    ) -> None:
        self.grid_tokens = grid_tokens or GRID_TOKENS[layout.dtype]
        if self.grid_tokens % layout.block_tokens:
            raise EngineError(
                f"block_tokens {layout.block_tokens} does not divide the grid of "
                f"{self.grid_tokens} tokens"
            )
        self._model = model
        self._pool = pool
        self._layout = layout
        self._attention = prompt_attention(model, layout, max(self.grid_tokens, _MIN_ROWS))
        self._min_rows = 1 if model.linear_mode == "avx512-panels" else _MIN_ROWS

    @torch.inference_mode()
    def prefill_chunk(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        prefix_slots: Sequence[int],
        chunk_slots: Sequence[int],
        *,
        on_layer: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] = _never,
        want_logits: bool = True,
    ) -> torch.Tensor | None:
        """Logits [vocab] of the last position; None when not wanted.

        `prefix_slots` hold positions 0 ... start - 1 and are only read, `chunk_slots` get those
        of `tokens`. `on_layer(i)` is called when the K and V of layer i are in the pool.
        Raises Cancelled between two layers; the chunk's slots are then half written.
        """
        self._check(tokens, start, prefix_slots, chunk_slots)
        num_tokens = len(tokens)
        num_rows = max(num_tokens, self._min_rows)
        rows = torch.from_numpy(tokens.astype(np.int64))
        positions = torch.arange(start, start + num_tokens)
        if num_rows > num_tokens:
            rows, positions = rows.expand(num_rows), positions.expand(num_rows)
        cos, sin = self._model.rotary(positions)
        hidden = self._model.embed(rows)
        end = start + num_tokens
        last = len(self._model.layers) - 1
        for index, layer in enumerate(self._model.layers):
            if is_cancelled():
                raise Cancelled
            query, key, value = layer.project(hidden, cos, sin)
            key, value = key[:num_tokens], value[:num_tokens]
            self._write_chunk(index, key, value, chunk_slots)
            if on_layer is not None:
                on_layer(index)
            if index == last and not want_logits:
                return None  # nobody needs more of the last layer than its K and V
            self._read_prefix(index, prefix_slots)
            self._attention.write(key, value, start)
            attended = self._attention.attend(query, start, end, index)
            hidden = layer.finish(hidden, attended)
        return self._model.logits(hidden[num_tokens - 1].expand(self._min_rows, -1))[0]

    def _write_chunk(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: Sequence[int]
    ) -> None:
        block_tokens = self._layout.block_tokens
        for offset, slot in enumerate(slots):
            own = slice(offset * block_tokens, (offset + 1) * block_tokens)
            keys, values = key[own], value[own]
            block = self._pool[slot, layer]
            block[0, : len(keys)] = keys
            block[1, : len(keys)] = values

    def _read_prefix(self, layer: int, slots: Sequence[int]) -> None:
        block_tokens = self._layout.block_tokens
        for offset, slot in enumerate(slots):
            keys, values = self._pool[slot, layer]
            self._attention.write(keys, values, offset * block_tokens)

    def _check(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        prefix_slots: Sequence[int],
        chunk_slots: Sequence[int],
    ) -> None:
        num_tokens, block_tokens = len(tokens), self._layout.block_tokens
        config = self._model.config
        if not 1 <= num_tokens <= self.grid_tokens:
            raise EngineError(f"tokens: {num_tokens} of them, a chunk has 1-{self.grid_tokens}")
        if start < 0 or start % self.grid_tokens:
            raise EngineError(f"start: {start} is not on the grid of {self.grid_tokens} tokens")
        if start + num_tokens > config.max_positions:
            raise EngineError(
                f"tokens: position {start + num_tokens} is beyond the context of "
                f"{config.max_positions}"
            )
        if int(tokens.min()) < 0 or int(tokens.max()) >= config.vocab_size:
            raise EngineError(f"tokens: an id is outside of the vocabulary of {config.vocab_size}")
        if len(prefix_slots) * block_tokens != start:
            raise EngineError(
                f"prefix_slots: {len(prefix_slots)} blocks of {block_tokens} tokens do not hold "
                f"the {start} tokens before the chunk"
            )
        if len(chunk_slots) != -(-num_tokens // block_tokens):
            raise EngineError(
                f"chunk_slots: {len(chunk_slots)} blocks of {block_tokens} for {num_tokens} tokens"
            )
