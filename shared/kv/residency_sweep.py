"""Takes the bits of dropped holders out of all blocks, a piece at a time, while blocks change.

It rewrites the sets of holders once and then the numbers of the blocks, place by place; what is
written meanwhile has none of the bits (the view sees to that). Ends by giving back unused sets.
"""

import numpy as np

from shared.kv.print_table import FIRST_PRINT, GrowingTable
from shared.kv.replica_sets import ReplicaSets


class Sweep:
    """One round over the table. `void` are the held bits of those that go."""

    def __init__(self, sets: ReplicaSets, void: int) -> None:
        self.void = void
        self._sets = sets
        known = len(sets.masks)
        self._is_used = np.zeros(known, np.bool_)
        self._following = np.arange(known, dtype=np.uint32)
        goes = void | void << 1
        for number in [number for number in sets if sets.masks[number] & goes]:
            self._following[number] = sets.number_of(sets.masks[number] & ~goes)
        self._next_place = 0
        self._generation = -1

    def mark(self, number: int) -> None:
        """A block has this set from now on."""
        if number < len(self._is_used):
            self._is_used[number] = True

    def step(self, growing: GrowingTable, max_places: int) -> bool:
        """The next places of a table that is not moving; True when all were seen."""
        table = growing.table
        if self._generation != growing.generation:
            self._generation, self._next_place = growing.generation, 0
        start = self._next_place
        end = self._next_place = min(start + max_places, table.capacity)
        values = table.values[start:end]
        known = values < len(self._following)
        values[known] = following = self._following[values[known]]
        self._is_used[following[following < len(self._is_used)]] = True
        is_left = (values == 0) & (table.prints[start:end] >= FIRST_PRINT)
        table.delete(start + np.flatnonzero(is_left))
        if end < table.capacity:
            return False
        used = self._is_used
        self._sets.forget_if(lambda number: number < len(used) and not used[number])
        return True
