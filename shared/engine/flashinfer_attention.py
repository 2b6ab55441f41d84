"""Attention of a decode step by FlashInfer, where it is installed. Never required."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from shared.checkpoint.model_config import ModelConfig
from shared.engine.kv_layout import KvLayout

_WORKSPACE_BYTES = 128 << 20
_EVERYTHING = -1  # as its window


_HEAD_DIMS = (64, 128, 256)
_GROUPS = (1, 2, 3, 4, 8)


def flashinfer_fits(config: ModelConfig, layout: KvLayout) -> bool:
    """Whether its decode kernels are built for these shapes; it has no float32."""
    group = config.num_heads // config.num_kv_heads
    return layout.dtype != "float32" and layout.head_dim in _HEAD_DIMS and group in _GROUPS


class FlashInferAttention:
    """A StepAttention; the page tables are given to FlashInfer once for each step."""

    def __init__(
        self, config: ModelConfig, layout: KvLayout, page_tokens: int, device: torch.device
    ) -> None:
        flashinfer: Any = importlib.import_module("flashinfer")
        self._config = config
        self._layout = layout
        self._page_tokens = page_tokens
        self._device = device
        windows = sorted(
            {config.window_of(layer) for layer in range(layout.num_layers)}, key=lambda w: w or 0
        )
        self._wrappers = {
            window: flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device), "NHD"
            )
            for window in windows
        }

    def begin(self, tables: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
        sizes = torch.tensor([0, *(len(table) for table in tables)], dtype=torch.int32)
        first_pages = sizes.cumsum(0, dtype=torch.int32).to(self._device)
        pages = torch.cat(list(tables)).to(self._device, torch.int32)
        on_last = [(length - 1) % self._page_tokens + 1 for length in lengths]
        on_last_page = torch.tensor(on_last, dtype=torch.int32, device=self._device)
        layout = self._layout
        for window, wrapper in self._wrappers.items():
            wrapper.plan(
                first_pages,
                pages,
                on_last_page,
                self._config.num_heads,
                layout.num_kv_heads,
                layout.head_dim,
                self._page_tokens,
                # FlashInfer counts the keys to the left of the query's own.
                window_left=_EVERYTHING if window is None else window - 1,
                q_data_type=layout.torch_dtype,
                kv_data_type=layout.torch_dtype,
            )

    def attend(self, layer: int, query: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        wrapper = self._wrappers[self._config.window_of(layer)]
        attended: torch.Tensor = wrapper.run(query.contiguous(), (pages[0], pages[1]))
        return attended.flatten(1)
