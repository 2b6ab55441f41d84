"""What prefill and decode need of attention, and who gives it: our kernels or torch's."""

from collections.abc import Sequence
from typing import Protocol

import torch

from shared.engine.attention_packed import PackedDecodeAttention, PackedPromptAttention
from shared.engine.attention_plain import PlainDecodeAttention, PlainPromptAttention
from shared.engine.copy_streams import CopyStreams, copy_streams
from shared.engine.flashinfer_attention import FlashInferAttention, flashinfer_fits
from shared.engine.kv_layout import KvLayout
from shared.engine.model import LlamaModel
from shared.engine.paged_decode import (
    BatchedAttention,
    EachAttention,
    PagedDecodeAttention,
    StepAttention,
    page_tokens_of,
)


class PromptAttention(Protocol):
    """K and V of one layer of one prompt at a time."""

    def write(self, keys: torch.Tensor, values: torch.Tensor, first: int) -> None:
        """[tokens, kv_heads, dim], to positions `first`..."""

    def attend(self, query: torch.Tensor, start: int, end: int, layer: int) -> torch.Tensor:
        """Queries [rows, heads, dim] at `start`... -> [rows, heads * dim]; `end` keys are there."""


class DecodeAttention(Protocol):
    """Caches of whole sequences, all layers, which only this object reads and writes."""

    def new_cache(self, num_tokens: int) -> torch.Tensor: ...

    def free(self, cache: torch.Tensor) -> None:
        """It is not used any more."""

    def grown(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """A larger cache with the same content; the old one is not used any more."""

    def load(self, cache: torch.Tensor, block: torch.Tensor, start: int) -> None:
        """A block's leading tokens [layer, 2, tokens, kv_heads, dim] to positions `start`..."""

    def unload(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """The way back, of positions 0 ... num_tokens - 1, to memory of its own on the host."""

    def begin(self, caches: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
        """The sequences of the step that follows, and where their tokens are."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Appends K and V, then attends; rows beyond the sequences are padding."""


def prompt_attention(model: LlamaModel, layout: KvLayout, max_rows: int) -> PromptAttention:
    if model.kernels is not None:
        return PackedPromptAttention(model.kernels, model.config, layout)
    return PlainPromptAttention(model.config, layout, max_rows)


def decode_attention(model: LlamaModel, layout: KvLayout, capacity_tokens: int) -> DecodeAttention:
    if model.device.is_cuda:
        return paged_decode_attention(model, layout, copy_streams(model.device), capacity_tokens)
    if model.kernels is not None:
        return PackedDecodeAttention(model.kernels, model.config, layout)
    return PlainDecodeAttention(model.config, layout)


def paged_decode_attention(
    model: LlamaModel, layout: KvLayout, streams: CopyStreams, capacity_tokens: int
) -> PagedDecodeAttention:
    return PagedDecodeAttention(
        layout,
        streams,
        _step_attention(model, layout),
        capacity_tokens=capacity_tokens,
        device=model.device.torch_device,
    )


def _step_attention(model: LlamaModel, layout: KvLayout) -> StepAttention:
    device = model.device.torch_device
    page_tokens = page_tokens_of(layout)
    if model.device.decode_attention == "flashinfer" and flashinfer_fits(model.config, layout):
        return FlashInferAttention(model.config, layout, page_tokens, device)
    if model.device.decode_attention == "each":
        return EachAttention(model.config, page_tokens, device)
    return BatchedAttention(model.config, page_tokens, device)
