"""Attention by our kernels, over K and V packed in tiles of 64 tokens.

Tiles lie at fixed positions, so a row's bits depend on its position and on what it sees only.
"""

from collections.abc import Sequence

import numpy as np
import torch

from shared.checkpoint.model_config import ModelConfig
from shared.engine.kernels import Kernels, packed_shape, unpacked
from shared.engine.kv_layout import KvLayout


class PackedPromptAttention:
    def __init__(self, kernels: Kernels, config: ModelConfig, layout: KvLayout) -> None:
        self._kernels = kernels
        self._config = config
        # Zeroed, and lazily resident: only what the longest prompt so far has touched.
        shape = packed_shape((layout.num_kv_heads,), config.max_positions, layout.head_dim)
        self._packed = torch.zeros(shape, dtype=layout.torch_dtype)

    def write(self, keys: torch.Tensor, values: torch.Tensor, first: int) -> None:
        self._kernels.pack(keys, values, self._packed, first)

    def attend(self, query: torch.Tensor, start: int, end: int, layer: int) -> torch.Tensor:
        return self._kernels.attend_run(query, self._packed, start, self._config.window_of(layer))


class PackedDecodeAttention:
    def __init__(self, kernels: Kernels, config: ModelConfig, layout: KvLayout) -> None:
        self._kernels = kernels
        self._config = config
        self._layout = layout
        self._addresses = self._layer_bytes = np.empty(0, dtype=np.int64)
        self._head_strides = self._positions = np.empty(0, dtype=np.int64)

    def new_cache(self, num_tokens: int) -> torch.Tensor:
        layout = self._layout
        leading = (layout.num_layers, layout.num_kv_heads)
        shape = packed_shape(leading, num_tokens, layout.head_dim)
        return torch.zeros(shape, dtype=layout.torch_dtype)

    def free(self, cache: torch.Tensor) -> None:
        pass  # goes with its last reference

    def load(self, cache: torch.Tensor, block: torch.Tensor, start: int) -> None:
        for packed, (keys, values) in zip(cache, block, strict=True):
            self._kernels.pack(keys, values, packed, start)

    def grown(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        larger = self.new_cache(num_tokens)
        larger[:, :, : cache.shape[2]] = cache
        return larger

    def unload(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        layout = self._layout
        heads, dim = layout.num_kv_heads, layout.head_dim
        out = torch.empty(layout.num_layers, 2, num_tokens, heads, dim, dtype=layout.torch_dtype)
        for into, packed in zip(out, cache, strict=True):
            into.copy_(unpacked(packed, num_tokens, dim))
        return out

    def begin(self, caches: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
        self._addresses = np.array([cache.data_ptr() for cache in caches], dtype=np.int64)
        item_bytes = self._layout.torch_dtype.itemsize
        self._layer_bytes = np.array([c.stride(0) * item_bytes for c in caches], dtype=np.int64)
        self._head_strides = np.array([cache.stride(1) for cache in caches], dtype=np.int64)
        self._positions = np.array(positions, dtype=np.int64)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        return self._kernels.attend_each(
            query,
            key,
            value,
            self._addresses + layer * self._layer_bytes,
            self._head_strides,
            self._positions,
            self._config.window_of(layer),
        )
