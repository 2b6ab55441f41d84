"""Attention by torch, over contiguous K and V of one sequence. On CUDA, and the fall-back on CPU.

Grouped query heads share a K/V head.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from shared.checkpoint.model_config import ModelConfig
from shared.engine.kv_layout import KvLayout

# With fewer rows torch splits the keys among its threads: other bits for each number of them.
_MIN_QUERIES = 4


class CausalMask:
    """Additive masks for a run of queries at the end of a context, as views of one triangle.

    With a `window` a query sees so many keys only, its own included.
    """

    def __init__(
        self,
        max_queries: int,
        max_keys: int,
        dtype: torch.dtype,
        window: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._split = max_keys
        size = max_keys + max_queries
        self._mask = torch.zeros(max_queries, size, dtype=dtype, device=device)
        triangle = torch.full_like(self._mask[:, :max_queries], float("-inf"))
        self._mask[:, max_keys:] = triangle.triu(diagonal=1)
        if window is not None:
            # Keys at most as far right as `split + query - window` are out of sight.
            hidden = torch.full_like(self._mask, float("-inf")).tril(diagonal=max_keys - window)
            self._mask += hidden

    def at(self, num_queries: int, num_past: int, num_keys: int) -> torch.Tensor:
        """Query i sees keys 0 ... num_past + i, or those of them in its window."""
        first = self._split - num_past
        return self._mask[:num_queries, first : first + num_keys]


class PlainPromptAttention:
    def __init__(self, config: ModelConfig, layout: KvLayout, max_rows: int) -> None:
        self._config = config
        # Lazily resident: only what the longest prompt so far has touched.
        shape = (2, config.max_positions, layout.num_kv_heads, layout.head_dim)
        self._scratch = torch.empty(shape, dtype=layout.torch_dtype)
        self._masks = {
            window: CausalMask(max_rows, config.max_positions, layout.torch_dtype, window)
            for window in {config.window_of(layer) for layer in range(layout.num_layers)}
        }

    def write(self, keys: torch.Tensor, values: torch.Tensor, first: int) -> None:
        self._scratch[0, first : first + len(keys)] = keys
        self._scratch[1, first : first + len(keys)] = values

    def attend(self, query: torch.Tensor, start: int, end: int, layer: int) -> torch.Tensor:
        mask = self._masks[self._config.window_of(layer)].at(len(query), start, end)
        return attend_causal(query, self._scratch[0, :end], self._scratch[1, :end], mask)


class PlainDecodeAttention:
    """Per sequence: no sequence's bits depend on its company."""

    def __init__(self, config: ModelConfig, layout: KvLayout) -> None:
        self._config = config
        self._layout = layout
        self._sequences: list[tuple[torch.Tensor, int]] = []

    def new_cache(self, num_tokens: int) -> torch.Tensor:
        layout = self._layout
        shape = (layout.num_layers, 2, num_tokens, layout.num_kv_heads, layout.head_dim)
        return torch.empty(shape, dtype=layout.torch_dtype)

    def free(self, cache: torch.Tensor) -> None:
        pass  # goes with its last reference

    def grown(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        larger = self.new_cache(num_tokens)
        larger[:, :, : cache.shape[2]] = cache
        return larger

    def load(self, cache: torch.Tensor, block: torch.Tensor, start: int) -> None:
        cache[:, :, start : start + block.shape[2]] = block

    def unload(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        return cache[:, :, :num_tokens].to("cpu", copy=True)

    def begin(self, caches: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
        self._sequences = list(zip(caches, positions, strict=True))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        attended = query.new_zeros(len(query), query.shape[1] * query.shape[2])
        window = self._config.window_of(layer)
        for row, (cache, position) in enumerate(self._sequences):
            keys, values = cache[layer]
            keys[position], values[position] = key[row], value[row]
            first = 0 if window is None else max(0, position + 1 - window)
            attended[row] = attend_one(
                query[row], keys[first : position + 1], values[first : position + 1]
            )
        return attended


def attend_causal(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """query [rows, heads, dim], keys and values [tokens, kv_heads, dim] -> [rows, heads * dim]."""
    num_padding = max(0, _MIN_QUERIES - len(query))
    if num_padding:
        mask = torch.cat((mask, mask[-1:].expand(num_padding, -1)))
    padded = F.pad(query, (0, 0, 0, 0, 0, num_padding))
    attend = _attend_by_kv_head if query.is_cuda else _attend_by_head
    return attend(padded, keys, values, mask)[: len(query)].reshape(len(query), -1)


def _attend_by_head(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        enable_gqa=True,
    )
    return attended.squeeze(0).transpose(0, 1)


def _attend_by_kv_head(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The same; CUDA's fused kernels with a mask want as many K/V heads as query heads."""
    rows, heads, dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.view(rows, num_kv_heads, heads // num_kv_heads, dim).permute(1, 2, 0, 3)
    group = grouped.shape[1]
    attended = F.scaled_dot_product_attention(
        grouped,
        keys.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        values.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        attn_mask=mask,
    )
    return attended.permute(2, 0, 1, 3).reshape(rows, heads, dim)


def attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [heads, dim] over all keys -> [heads * dim].

    The heads that share a K/V head become the rows of one product: K and V are not repeated.
    """
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(1, num_kv_heads, -1, query.shape[-1])
    num_rows = grouped.shape[2]
    attended = F.scaled_dot_product_attention(
        F.pad(grouped, (0, 0, 0, max(0, _MIN_QUERIES - num_rows))),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
    )
    return attended[:, :, :num_rows].reshape(-1)
