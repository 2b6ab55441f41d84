"""PURE: how a prompt divides into blocks and grid chunks, and what of it may be shared."""

from collections.abc import Iterator
from dataclasses import dataclass

NUM_LAYER_GROUPS = 6
"""Of a chunk: what of its KV is complete is told to decode so many times."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, end) of the prompt; `start` is on the grid."""

    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid chunk is a whole number of blocks."""

    block_tokens: int
    grid_tokens: int

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.grid_tokens % self.block_tokens:
            raise ValueError(
                f"block_tokens: {self.block_tokens} does not divide the grid of {self.grid_tokens}"
            )

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def valid_tokens(self, block: int, num_tokens: int) -> int:
        """Tokens of the prompt that are in this block."""
        return min(self.block_tokens, num_tokens - block * self.block_tokens)

    def max_hit_blocks(self, num_tokens: int) -> int:
        """The longest hit: the last chunk is always computed, for its logits."""
        return (num_tokens - 1) // self.grid_tokens * self.grid_tokens // self.block_tokens

    def hit_blocks(self, held_blocks: int, num_tokens: int) -> int:
        """Of the held leading blocks, those that may be used: whole chunks only."""
        blocks = min(held_blocks, self.max_hit_blocks(num_tokens))
        per_chunk = self.grid_tokens // self.block_tokens
        return blocks // per_chunk * per_chunk

    def shareable_blocks(self, num_tokens: int) -> int:
        """Leading blocks that lie in whole grid chunks: only these get a key."""
        return num_tokens // self.grid_tokens * self.grid_tokens // self.block_tokens

    def chunks(self, start: int, num_tokens: int) -> Iterator[Chunk]:
        """The chunks from `start`, which must be on the grid, to the end of the prompt."""
        if start % self.grid_tokens:
            raise ValueError(f"start: {start} is not on the grid of {self.grid_tokens}")
        for first in range(start, num_tokens, self.grid_tokens):
            yield Chunk(first, min(first + self.grid_tokens, num_tokens))

    def blocks_of(self, chunk: Chunk) -> range:
        return range(chunk.start // self.block_tokens, self.num_blocks(chunk.end))


def layer_groups(num_layers: int, num_groups: int) -> dict[int, tuple[int, int]]:
    """Groups of about equal size, by their last layer: {last: (first, last + 1)}."""
    count = max(1, min(num_groups, num_layers))
    ends = [num_layers * (group + 1) // count for group in range(count)]
    starts = [0, *ends[:-1]]
    return {end - 1: (start, end) for start, end in zip(starts, ends, strict=True)}
