"""Computes the KV of prompt chunks straight into pool slots. Keeps no state between chunks.

A chunk starts at a multiple of the grid and is computed alone, so a hit runs in the very same
shapes as a cold run: equal bits. Requests may be paused, and others run, between two chunks.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.attention import prompt_attention
from shared.engine.copy_streams import copy_streams
from shared.engine.errors import Cancelled, EngineError
from shared.engine.kv_layout import GRID_TOKENS, KvLayout
from shared.engine.linear import PANEL_MODES
from shared.engine.model import LlamaModel
from shared.engine.paged_prompt_kv import PagedPromptKv
from shared.engine.prompt_kv import ChunkRun, PoolPromptKv, PromptKv
from shared.engine.prompt_scores import PromptScores, ScoreWish, score_rows

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
        *,
        device_tokens: int = 0,
        kv: PromptKv | None = None,
    ) -> None:
        """On a device that is no CPU, KV of `device_tokens` is kept there beside the pool; `kv`
        replaces what the model's device would have."""
        self.grid_tokens = grid_tokens or GRID_TOKENS[layout.dtype]
        if self.grid_tokens % layout.block_tokens:
            raise EngineError(
                f"block_tokens {layout.block_tokens} does not divide the grid of "
                f"{self.grid_tokens} tokens"
            )
        self._model = model
        self._layout = layout
        max_rows = max(self.grid_tokens, _MIN_ROWS)
        self._kv = kv or _kv_of(model, pool, layout, max_rows, device_tokens)
        self._min_rows = 1 if model.linear_mode in PANEL_MODES else _MIN_ROWS

    @torch.inference_mode()
    def prefill_chunk(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        prefix_slots: Sequence[int],
        chunk_slots: Sequence[int],
        *,
        generations: Sequence[int] = (),
        on_layer: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] = _never,
        want_logits: bool = True,
        wish: ScoreWish | None = None,
        on_scores: Callable[[PromptScores], None] | None = None,
    ) -> torch.Tensor | None:
        """Logits [vocab] of the last position; None when not wanted.

        `prefix_slots` hold positions 0 ... start - 1 and are only read, `chunk_slots` get those
        of `tokens`; with the `generations` of both, a device need not load a block again.
        `on_layer(i)` is called in this thread, layer after layer, when the K and V of layer i are
        in the pool; with a `wish`, `on_scores` after them. Raises Cancelled between two layers; the
        chunk's slots are then half written.
        """
        self._check(tokens, start, prefix_slots, chunk_slots)
        self._kv.begin(ChunkRun(start, len(tokens), prefix_slots, chunk_slots, generations))
        is_whole = False
        try:
            want_hidden = want_logits or wish is not None
            hidden = self._run_layers(tokens, start, on_layer, is_cancelled, want_hidden)
            logits = None
            if hidden is not None and want_logits:
                last = hidden[len(tokens) - 1].expand(self._min_rows, -1)
                logits = self._model.logits(last)[0].cpu()
            self._report(on_layer, self._kv.arrived(wait=True))
            if hidden is not None and wish is not None and on_scores is not None:
                on_scores(self._scored(hidden, wish, is_cancelled))
            is_whole = True
        finally:
            self._kv.end(is_whole=is_whole)
        return logits

    def _scored(
        self, hidden: torch.Tensor, wish: ScoreWish, is_cancelled: Callable[[], bool]
    ) -> PromptScores:
        logits_of, min_rows = self._model.logits, self._min_rows
        return score_rows(hidden, wish, logits_of, min_rows=min_rows, is_cancelled=is_cancelled)

    def _run_layers(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        on_layer: Callable[[int], None] | None,
        is_cancelled: Callable[[], bool],
        want_hidden: bool,
    ) -> torch.Tensor | None:
        """Hidden rows after the last layer; None when they are not wanted."""
        num_tokens = len(tokens)
        num_rows = max(num_tokens, self._min_rows)
        device = self._model.device.torch_device
        rows = torch.from_numpy(tokens.astype(np.int64)).to(device)
        positions = torch.arange(start, start + num_tokens, device=device)
        if num_rows > num_tokens:
            rows, positions = rows.expand(num_rows), positions.expand(num_rows)
        cos, sin = self._model.rotary(positions)
        hidden = self._model.embed(rows)
        last = len(self._model.layers) - 1
        for index, layer in enumerate(self._model.layers):
            if is_cancelled():
                raise Cancelled
            query, key, value = layer.project(hidden, cos, sin)
            self._kv.put(index, key[:num_tokens], value[:num_tokens])
            self._report(on_layer, self._kv.arrived())
            if index == last and not want_hidden:
                return None  # nobody needs more of the last layer than its K and V
            hidden = layer.finish(hidden, self._kv.attend(index, query))
        return hidden

    def _report(self, on_layer: Callable[[int], None] | None, layers: list[int]) -> None:
        if on_layer is not None:
            for layer in layers:
                on_layer(layer)

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


def _kv_of(
    model: LlamaModel, pool: torch.Tensor, layout: KvLayout, max_rows: int, device_tokens: int
) -> PromptKv:
    if not model.device.is_cuda:
        return PoolPromptKv(pool, layout, prompt_attention(model, layout, max_rows))
    return PagedPromptKv(
        model.config,
        layout,
        pool,
        copy_streams(model.device),
        max_rows=max_rows,
        num_tokens=device_tokens,
        device=model.device.torch_device,
    )
