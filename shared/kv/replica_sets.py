"""Sets of holders as numbers: each set that occurs is kept once. Knows no blocks.

A set is an int of two bits a holder: it has the block (even bit), and only on disk (odd bit).
"""

from collections.abc import Callable, Iterator
from typing import NewType

HolderId = NewType("HolderId", int)
"""Small and dense; used again once a dropped holder was swept."""
SET_BYTES = 160
"""A set, its entry in the list and in the dict, for a few dozen nodes."""


def held_bit(holder: int) -> int:
    return 1 << 2 * holder


def disk_bit(holder: int) -> int:
    return 2 << 2 * holder


class ReplicaSets:
    """Number 0 is the empty set. Numbers nobody uses are given back by the owner of the uses."""

    def __init__(self) -> None:
        self.masks: list[int] = [0]
        self._ids: dict[int, int] = {0: 0}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._ids) - 1

    def __iter__(self) -> Iterator[int]:
        """Numbers in use."""
        return (number for mask, number in self._ids.items() if mask)

    def number_of(self, mask: int) -> int:
        number = self._ids.get(mask)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.masks[number] = mask
            else:
                number = len(self.masks)
                self.masks.append(mask)
            self._ids[mask] = number
        return number

    def forget_if(self, is_unused: Callable[[int], bool]) -> None:
        """Give back the numbers that no block has."""
        for number in [number for number in self if is_unused(number)]:
            del self._ids[self.masks[number]]
            self.masks[number] = 0
            self._free.append(number)

    @property
    def num_bytes(self) -> int:
        return len(self._ids) * SET_BYTES


def bits_of(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def holders_in(mask: int, live: int) -> Iterator[HolderId]:
    """Those of `live` (held bits) that are in the set."""
    return (HolderId(bit // 2) for bit in bits_of(mask & live))
