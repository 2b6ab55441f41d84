"""Decode's K and V in pages of a device, loaded from the pool beside the steps of others.

A sequence's "cache" is the tensor of its pages' numbers, on the host.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from shared.checkpoint.model_config import ModelConfig
from shared.engine.attention_plain import attend_one
from shared.engine.copy_streams import CopyStreams, Ticket
from shared.engine.kv_layout import KvLayout
from shared.engine.page_table import PageTable, token_runs
from shared.engine.staging import StagingRing

_PAGE_TOKENS = 16
_MAX_SEQUENCES = 256  # each may leave most of its last page empty
_LOAD_BUFFERS = 2  # one block of all layers each


def page_tokens_of(layout: KvLayout) -> int:
    """A block is a whole number of pages."""
    return math.gcd(_PAGE_TOKENS, layout.block_tokens)


class StepAttention(Protocol):
    """Attends for the sequences of one step, over pages that hold their tokens already."""

    def begin(self, tables: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
        """The pages of each sequence (on the host), and how many tokens it attends to."""

    def attend(self, layer: int, query: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """query [rows, heads, dim], pages [2, page, token, kv_heads, dim] -> [rows, values]."""


class PagedDecodeAttention:
    """A DecodeAttention for devices; runs on a CPU as well, for tests."""

    def __init__(
        self,
        layout: KvLayout,
        streams: CopyStreams,
        step_attention: StepAttention,
        *,
        capacity_tokens: int,
        device: torch.device,
    ) -> None:
        self._layout = layout
        self._streams = streams
        self._step = step_attention
        self._device = device
        page_tokens = page_tokens_of(layout)
        num_pages = -(-capacity_tokens // page_tokens) + _MAX_SEQUENCES
        token = (layout.num_kv_heads, layout.head_dim)
        shape = (layout.num_layers, 2, num_pages, page_tokens, *token)
        # Zeroed: what a page holds beyond its sequence is masked, but must be a number.
        self._pages = torch.zeros(shape, dtype=layout.torch_dtype, device=device)
        self._table = PageTable(num_pages, page_tokens)
        block = (layout.num_layers, 2, layout.block_tokens, *token)
        self._staging = StagingRing(streams, _LOAD_BUFFERS, block, layout.torch_dtype)
        self._loading: list[Ticket] = []
        self._places = torch.empty(0, dtype=torch.int64)

    def new_cache(self, num_tokens: int) -> torch.Tensor:
        return torch.tensor(self._table.take(num_tokens), dtype=torch.int64)

    def grown(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """The pages there are stay where they are."""
        size = self._table.page_tokens
        more = self._table.take(max(num_tokens - len(cache) * size, 0))
        return torch.cat((cache, torch.tensor(more, dtype=torch.int64)))

    def free(self, cache: torch.Tensor) -> None:
        self._table.give_back(cache.tolist())

    def load(self, cache: torch.Tensor, block: torch.Tensor, start: int) -> None:
        """The block is free to change when this returns; its copy may still be under way."""
        num_tokens = block.shape[2]
        staged = self._staging.take()[:, :, :num_tokens]
        staged.copy_(block)
        by_token = self._pages.flatten(0, 1).flatten(1, 2)
        parts = staged.flatten(0, 1)
        runs = list(token_runs(cache.tolist(), self._table.page_tokens, start, num_tokens))
        # Each a piece of plain memory: others are copied by way of a temporary, and waited for.
        ticket = self._streams.to_device(
            [
                (target[place : place + count], source[offset : offset + count])
                for target, source in zip(by_token, parts, strict=True)
                for offset, place, count in runs
            ]
        )
        self._staging.used_by(ticket)
        self._loading.append(ticket)

    def unload(self, cache: torch.Tensor, num_tokens: int) -> torch.Tensor:
        self._wait_loaded()
        pages = self._pages.index_select(2, cache.to(self._device))
        return pages.flatten(2, 3)[:, :, :num_tokens].cpu().contiguous()

    def begin(self, caches: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
        self._wait_loaded()
        size = self._table.page_tokens
        places = [
            int(cache[position // size]) * size + position % size
            for cache, position in zip(caches, positions, strict=True)
        ]
        self._places = torch.tensor(places, dtype=torch.int64, device=self._device)
        lengths = [position + 1 for position in positions]
        tables = [
            cache[: -(-length // size)] for cache, length in zip(caches, lengths, strict=True)
        ]
        self._step.begin(tables, lengths)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        count, pages = len(self._places), self._pages[layer]
        keys, values = pages.flatten(1, 2)
        keys.index_copy_(0, self._places, key[:count])
        values.index_copy_(0, self._places, value[:count])
        attended = query.new_zeros(len(query), query.shape[1] * query.shape[2])
        attended[:count] = self._step.attend(layer, query[:count], pages)
        return attended

    def _wait_loaded(self) -> None:
        for ticket in self._loading:
            ticket.wait_compute()
        self._loading.clear()


class EachAttention:
    """Sequence by sequence: no sequence's bits depend on its company."""

    def __init__(self, config: ModelConfig, page_tokens: int, device: torch.device) -> None:
        self._config = config
        self._page_tokens = page_tokens
        self._device = device
        self._sequences: list[tuple[torch.Tensor, int]] = []

    def begin(self, tables: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
        on_device = [table.to(self._device) for table in tables]
        self._sequences = list(zip(on_device, lengths, strict=True))

    def attend(self, layer: int, query: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        window = self._config.window_of(layer)
        rows = []
        for row, (table, length) in zip(query, self._sequences, strict=True):
            first = 0 if window is None else max(0, length - window)
            skipped = first // self._page_tokens
            keys, values = pages.index_select(1, table[skipped:]).flatten(1, 2)
            seen = slice(first - skipped * self._page_tokens, length - skipped * self._page_tokens)
            rows.append(attend_one(row, keys[seen], values[seen]))
        return torch.stack(rows)


class BatchedAttention:
    """All sequences in one call, filled up to the longest: fewer, larger kernels."""

    def __init__(self, config: ModelConfig, page_tokens: int, device: torch.device) -> None:
        self._config = config
        self._page_tokens = page_tokens
        self._device = device
        self._tables = torch.empty(0, dtype=torch.int64)
        self._masks: dict[int | None, torch.Tensor] = {}

    def begin(self, tables: Sequence[torch.Tensor], lengths: Sequence[int]) -> None:
        padded = torch.nn.utils.rnn.pad_sequence(list(tables), batch_first=True)
        self._tables = padded.to(self._device)
        after = torch.tensor(lengths, device=self._device)[:, None]
        places = torch.arange(padded.shape[1] * self._page_tokens, device=self._device)
        windows = {self._config.window_of(layer) for layer in range(self._config.num_layers)}
        self._masks = {
            window: (places < after)
            if window is None
            else (places < after) & (places >= after - window)
            for window in windows
        }

    def attend(self, layer: int, query: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        count, num_pages = self._tables.shape
        gathered = pages.index_select(1, self._tables.flatten())
        keys, values = gathered.view(2, count, num_pages * self._page_tokens, *pages.shape[3:])
        mask = self._masks[self._config.window_of(layer)]
        attended = F.scaled_dot_product_attention(
            # The heads that share a K/V head become the rows of one product.
            query.reshape(count, keys.shape[2], -1, query.shape[-1]),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask[:, None, None, :],
        )
        return attended.reshape(count, -1)
