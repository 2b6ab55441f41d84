"""Computes the KV of prompt chunks straight into pool slots. Keeps no state between chunks.

A chunk starts at a multiple of the grid and is computed alone, so a hit runs in the very same
shapes as a cold run: equal bits. Requests may be paused, and others run, between two chunks.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.attention import CausalMask, attend_causal
from shared.engine.errors import Cancelled, EngineError
from shared.engine.kv_layout import GRID_TOKENS, KvLayout
from shared.engine.model import LlamaModel

# A single row takes another kernel, with other bits; two or more agree.
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
        max_positions = model.config.max_positions
        # Lazily resident: only what the longest prompt so far has touched.
        self._scratch = torch.empty(
            (2, max_positions, layout.num_kv_heads, layout.head_dim), dtype=layout.torch_dtype
        )
        max_rows = max(self.grid_tokens, _MIN_ROWS)
        self._masks = {
            window: CausalMask(max_rows, max_positions, model.dtype, window)
            for window in {model.config.window_of(layer) for layer in range(layout.num_layers)}
        }

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
        num_rows = max(num_tokens, _MIN_ROWS)
        rows = torch.from_numpy(tokens.astype(np.int64))
        positions = torch.arange(start, start + num_tokens)
        if num_rows > num_tokens:
            rows, positions = rows.expand(num_rows), positions.expand(num_rows)
        cos, sin = self._model.rotary(positions)
        hidden = self._model.embed(rows)
        end = start + num_tokens
        masks = {window: mask.at(num_rows, start, end) for window, mask in self._masks.items()}
        last = len(self._model.layers) - 1
        for index, layer in enumerate(self._model.layers):
            if is_cancelled():
                raise Cancelled
            query, key, value = layer.project(hidden, cos, sin)
            self._scratch[0, start:end] = key[:num_tokens]
            self._scratch[1, start:end] = value[:num_tokens]
            self._write_chunk(index, start, end, chunk_slots)
            if on_layer is not None:
                on_layer(index)
            if index == last and not want_logits:
                return None  # nobody needs more of the last layer than its K and V
            self._gather_prefix(index, prefix_slots)
            mask = masks[self._model.config.window_of(index)]
            attended = attend_causal(query, self._scratch[0, :end], self._scratch[1, :end], mask)
            hidden = layer.finish(hidden, attended)
        return self._model.logits(hidden[num_tokens - 1].expand(_MIN_ROWS, -1))[0]

    def _write_chunk(self, layer: int, start: int, end: int, slots: Sequence[int]) -> None:
        block_tokens = self._layout.block_tokens
        for offset, slot in enumerate(slots):
            first = start + offset * block_tokens
            count = min(block_tokens, end - first)
            self._pool[slot, layer, :, :count] = self._scratch[:, first : first + count]

    def _gather_prefix(self, layer: int, slots: Sequence[int]) -> None:
        block_tokens = self._layout.block_tokens
        for offset, slot in enumerate(slots):
            first = offset * block_tokens
            self._scratch[:, first : first + block_tokens] = self._pool[slot, layer]

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
