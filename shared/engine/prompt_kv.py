"""Where the K and V of a chunk go and where those before it come from: the pool, in place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from shared.engine.attention import PromptAttention
from shared.engine.kv_layout import KvLayout


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """One chunk of one prompt."""

    start: int
    num_tokens: int
    prefix_slots: Sequence[int]
    chunk_slots: Sequence[int]
    generations: Sequence[int] = ()
    """Of those slots, in that order; empty: not known, and nothing outlives the chunk."""

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class PromptKv(Protocol):
    """Of one chunk at a time: begin, then put and attend layer by layer, then end."""

    def begin(self, run: ChunkRun) -> None: ...

    def put(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """The chunk's own K and V, [tokens, kv_heads, dim]; they start on their way to the pool."""

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Over all before the chunk and in it: [rows, heads, dim] -> [rows, heads * dim]."""

    def arrived(self, *, wait: bool = False) -> list[int]:
        """Layers whose K and V are in the pool since the last call; with `wait` all put so far."""

    def end(self, *, is_whole: bool) -> None:
        """No copy is under way afterwards; always called."""


class PoolPromptKv:
    """On a CPU. The pool is memory like any other."""

    def __init__(self, pool: torch.Tensor, layout: KvLayout, attention: PromptAttention) -> None:
        self._pool = pool
        self._block_tokens = layout.block_tokens
        self._attention = attention
        self._run: ChunkRun | None = None
        self._own: tuple[torch.Tensor, torch.Tensor] | None = None
        self._arrived: list[int] = []

    def begin(self, run: ChunkRun) -> None:
        self._run, self._own, self._arrived = run, None, []

    def put(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        assert self._run is not None
        write_blocks(self._pool[:, layer], self._run.chunk_slots, key, value)
        self._own = key, value
        self._arrived.append(layer)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        assert self._run is not None
        assert self._own is not None
        for index, slot in enumerate(self._run.prefix_slots):
            keys, values = self._pool[slot, layer]
            self._attention.write(keys, values, index * self._block_tokens)
        self._attention.write(*self._own, self._run.start)
        return self._attention.attend(query, self._run.start, self._run.end, layer)

    def arrived(self, *, wait: bool = False) -> list[int]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def end(self, *, is_whole: bool) -> None:
        self._run = self._own = None


def write_blocks(
    blocks: torch.Tensor, indices: Sequence[int], key: torch.Tensor, value: torch.Tensor
) -> None:
    """K and V [tokens, ...] of one layer into some of its blocks [index, 2, token, ...]."""
    block_tokens = blocks.shape[2]
    for offset, index in enumerate(indices):
        own = slice(offset * block_tokens, (offset + 1) * block_tokens)
        keys, values = key[own], value[own]
        blocks[index, 0, : keys.shape[0]] = keys
        blocks[index, 1, : keys.shape[0]] = values
