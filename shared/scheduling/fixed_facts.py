"""What candidates are, whatever they report: where all are alike a number, else a column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FixedFacts:
    block_tokens: Ints | int
    grid_tokens: Ints | int
    block_bytes: Ints | int
    admit_tokens: Ints | int
    """Decode: tokens of an answer that must have room when it is admitted."""
    token_bytes: Floats | float
    """KV of a token."""
    is_sorted: NDArray[np.bool_] | bool
    """The queue is known by size."""
    is_block_whole: bool
    """A block is a whole number of grid chunks."""
    least_context_tokens: int
    least_capacity_tokens: int

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], rows: NDArray[np.intp]) -> "FixedFacts":
        def fact(name: str) -> Any:
            values = columns[name][rows]
            is_alike = len(values) > 0 and bool((values == values[0]).all())
            return values[0].item() if is_alike else values

        block_tokens, grid_tokens = fact("block_tokens"), fact("grid_tokens")
        block_bytes = fact("block_bytes")
        return cls(
            block_tokens=block_tokens,
            grid_tokens=grid_tokens,
            block_bytes=block_bytes,
            admit_tokens=fact("admit_tokens"),
            token_bytes=block_bytes / block_tokens,
            is_sorted=fact("is_sorted"),
            is_block_whole=not np.any(block_tokens % grid_tokens),
            least_context_tokens=int(columns["context_tokens"][rows].min(initial=1 << 62)),
            least_capacity_tokens=int(columns["capacity_tokens"][rows].min(initial=1 << 62)),
        )

    def usable_tokens(self, num_blocks: Ints | int, num_tokens: int) -> Ints | int:
        """Tokens of a prompt that a match saves: whole grid chunks, never the last chunk."""
        grid = self.grid_tokens
        matched = num_blocks * self.block_tokens
        if not self.is_block_whole:
            matched = matched // grid * grid
        upto = (num_tokens - 1) // grid * grid
        if isinstance(matched, int) and isinstance(upto, int):
            return min(matched, upto)
        usable: Ints = np.minimum(matched, upto)
        return usable
