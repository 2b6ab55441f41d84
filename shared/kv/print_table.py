"""A hash table from fingerprints to small numbers, in flat arrays. Knows no nodes and no chains.

Open addressing with linear probing; 13 bytes a place. Batches go through numpy, single look-ups
through a memoryview of the same array. It grows beside its old arrays and moves over in pieces, so
that no call ever takes long. Fingerprints are uniform hashes already: their low bits are the place.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Prints = npt.NDArray[np.uint64]
Values = npt.NDArray[np.uint32]
Classes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

EMPTY: Final = 0
GONE: Final = 1
FIRST_PRINT: Final = 2
"""Fingerprints below are moved up by as much: the two marks are no fingerprints."""
PLACE_BYTES: Final = 8 + 4 + 1
MIN_CAPACITY: Final = 1_024
MAX_LOAD: Final = 0.7
FEW: Final = 24
"""So few are found faster one by one than by numpy."""
MIN_STEP: Final = 4_096
STEPS_PER_PRINT: Final = 8
"""Old places moved for each fingerprint stored: moving ends long before the next growth."""


class PrintTable:
    """One generation of the table: fixed size, never more than MAX_LOAD full."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._mask = capacity - 1
        self.prints: Prints = np.zeros(capacity, np.uint64)
        self.values: Values = np.zeros(capacity, np.uint32)
        self.classes: Classes = np.zeros(capacity, np.uint8)
        self.prints_view = _view(self.prints)
        self.values_view = _view(self.values)
        self.num_live = 0
        self.num_gone = 0

    def get(self, print_: int) -> int:
        """The value, 0 when there is none."""
        prints, mask = self.prints_view, self._mask
        place = print_ & mask
        while (found := prints[place]) != print_:
            if not found:
                return 0
            place = (place + 1) & mask
        value: int = self.values_view[place]
        return value

    def find(self, prints: Prints) -> Places:
        """The places of these fingerprints, -1 where there is none."""
        places = (prints & np.uint64(self._mask)).astype(np.int64)
        found = self.prints[places]
        is_hit = found == prints
        if is_hit.all():
            return places
        result = np.where(is_hit, places, -1)
        waiting = np.flatnonzero(~is_hit & (found != EMPTY))
        while len(waiting):
            if len(waiting) <= FEW:
                for at in waiting.tolist():
                    result[at] = self._find_from(int(places[at]) + 1, int(prints[at]))
                return result
            following = (places[waiting] + 1) & self._mask
            places[waiting] = following
            found = self.prints[following]
            is_hit = found == prints[waiting]
            result[waiting[is_hit]] = following[is_hit]
            waiting = waiting[~is_hit & (found != EMPTY)]
        return result

    def _find_from(self, place: int, print_: int) -> int:
        prints, mask = self.prints_view, self._mask
        place &= mask
        while (found := prints[place]) != print_:
            if not found:
                return -1
            place = (place + 1) & mask
        return place

    def insert(self, prints: Prints) -> Places:
        """Take places for fingerprints that are not here, each once; the caller sets the rest."""
        places = (prints & np.uint64(self._mask)).astype(np.int64)
        waiting = np.arange(len(prints))
        while True:
            wanted = places[waiting]
            found = self.prints[wanted]
            is_free = found < FIRST_PRINT
            taken = wanted[is_free]
            self.prints[taken] = prints[waiting[is_free]]
            # Two may want one place: the last to write has it.
            has_won = self.prints[wanted] == prints[waiting]
            self.num_gone -= int(np.count_nonzero(found[has_won] == GONE))
            waiting = waiting[~has_won]
            if not len(waiting):
                break
            places[waiting] = (places[waiting] + 1) & self._mask
        self.num_live += len(prints)
        return places

    def delete(self, places: Places) -> None:
        self.prints[places] = GONE
        self.values[places] = 0
        self.num_live -= len(places)
        self.num_gone += len(places)


def _view(array: Any) -> memoryview:
    """Plain ints of an array, four times as fast as by numpy."""
    return memoryview(array)


class GrowingTable:
    """What is in `table` is current; what was not moved yet is in `_old`."""

    def __init__(self, max_capacity: int | None = None) -> None:
        self.table = PrintTable(MIN_CAPACITY)
        self._old: PrintTable | None = None
        self._num_moved = 0
        self.generation = 0
        """Changes whenever places become void."""
        self._max_capacity = max_capacity

    def __len__(self) -> int:
        return self.table.num_live + (0 if self._old is None else self._old.num_live)

    @property
    def is_moving(self) -> bool:
        return self._old is not None

    @property
    def num_bytes(self) -> int:
        capacity = self.table.capacity + (0 if self._old is None else self._old.capacity)
        return capacity * PLACE_BYTES

    @property
    def max_prints(self) -> int | None:
        """How many may ever be in it; None: no limit."""
        return None if self._max_capacity is None else int(self._max_capacity * MAX_LOAD)

    def arrays(self) -> tuple[memoryview, memoryview, int] | None:
        """(fingerprints, values, mask) to look up many by hand; None: only `get` will do now."""
        if self._old is not None:
            return None
        table = self.table
        return table.prints_view, table.values_view, table.capacity - 1

    def get(self, print_: int) -> int:
        value = self.table.get(print_)
        if not value and self._old is not None:
            return self._old.get(print_)
        return value

    def has_room(self, num_prints: int) -> bool:
        limit = self.max_prints
        return limit is None or len(self) + num_prints <= limit

    def gather(self, prints: Prints) -> PrintTable:
        """The table that has all of these that are here; moves some others over too."""
        old = self._old
        if old is not None:
            places = old.find(prints)
            self._move(old, places[places >= 0])
            self.move_on(max(MIN_STEP, STEPS_PER_PRINT * len(prints)))
        return self.table

    def make_room(self, num_prints: int) -> bool:
        """For so many new ones; True when it grew: all places are void then."""
        table = self.table
        waiting = 0 if self._old is None else self._old.num_live
        used = table.num_live + table.num_gone + waiting + num_prints
        if used <= table.capacity * MAX_LOAD:
            return False
        self._grow(num_prints)
        return True

    def reserve(self, num_prints: int) -> None:
        """Grow now to what will be needed for so many more, as far as the budget allows."""
        limit = self.max_prints
        if limit is not None:
            num_prints = min(num_prints, limit - len(self))
        if num_prints > 0 and self.make_room(num_prints):
            self.move_all()

    def move_on(self, num_places: int) -> None:
        """Move what is in the next places of the old arrays."""
        old = self._old
        if old is None:
            return
        start, end = self._num_moved, min(self._num_moved + num_places, old.capacity)
        self._move(old, start + np.flatnonzero(old.prints[start:end] >= FIRST_PRINT))
        self._num_moved = end
        if end == old.capacity:
            self._old = None

    def move_all(self) -> PrintTable:
        """The table that has everything."""
        while self._old is not None:
            self.move_on(1 << 20)
        return self.table

    def _grow(self, num_prints: int) -> None:
        self.move_all()
        capacity = self.table.capacity
        needed = self.table.num_live + num_prints
        # A table that is full of marks alone is renewed at its size.
        while needed > capacity * MAX_LOAD * 0.75 and capacity != self._max_capacity:
            capacity *= 2
        if needed > capacity * MAX_LOAD:
            raise MemoryError(f"{needed} fingerprints are more than the table may hold")
        self._old, self._num_moved = self.table, 0
        self.table = PrintTable(capacity)
        self.generation += 1

    def _move(self, old: PrintTable, places: Places) -> None:
        if not len(places):
            return
        into = self.table.insert(old.prints[places])
        self.table.values[into] = old.values[places]
        self.table.classes[into] = old.classes[places]
        old.delete(places)


def capacity_within(num_bytes: int) -> int:
    """The largest capacity whose arrays fit in so many bytes twice: it is renewed at its size."""
    places = num_bytes // (2 * PLACE_BYTES)
    return max(MIN_CAPACITY, 1 << max(places.bit_length() - 1, 0))
