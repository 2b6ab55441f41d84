"""The slots of a pool: their states, generations and the free list. Knows no chains and no holders.

FREE → WRITING → SEALED or PRIVATE → FREE. A sealed block that was taken out of the readable set
while somebody holds it is DOOMED until the last hold ends.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import cast

import numpy as np
import numpy.typing as npt

from shared.kv.ids import Generation, Slot


class SlotState(IntEnum):
    FREE = 0
    WRITING = 1
    PRIVATE = 2
    SEALED = 3
    DOOMED = 4


class SlotTable:
    """State, generation and checksum of each slot.

    `generations` may lie in shared memory: a reader in another process compares it after reading,
    so a slot gets its next generation before a byte of the next use is written.
    """

    def __init__(self, num_slots: int, generations: npt.NDArray[np.uint64] | None = None) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots: must be at least 1, is {num_slots}")
        self.num_slots = num_slots
        self._generations = (
            np.zeros(num_slots, dtype=np.uint64) if generations is None else generations
        )
        if len(self._generations) != num_slots:
            raise ValueError(f"generations: {len(self._generations)} for {num_slots} slots")
        # Single items are read and written as plain ints: several times faster than numpy's.
        self._table = self._generations.data
        self._states = bytearray(num_slots)
        self._checksums = array("Q", bytes(8 * num_slots))
        self._counts = [0] * len(SlotState)
        self._counts[SlotState.FREE] = num_slots
        # Low numbers are taken first: a pool that is hardly used touches little memory.
        self._free = array("I", range(num_slots - 1, -1, -1))
        self.on_free: Callable[[], None] = lambda: None

    def state(self, slot: Slot) -> SlotState:
        return SlotState(self._states[slot])

    def are_in(self, slots: Iterable[Slot], state: SlotState) -> bool:
        """Whether all of these are."""
        return {*map(self._states.__getitem__, slots)} <= {int(state)}

    def is_in(self, slot: Slot, state: SlotState) -> bool:
        return self._states[slot] == state

    def generation(self, slot: Slot) -> Generation:
        return Generation(self._table[slot])

    def generations(self, slots: Iterable[Slot]) -> Iterator[Generation]:
        read = cast("Callable[[Slot], Generation]", self._table.__getitem__)
        return map(read, slots)

    def checksums(self, slots: Iterable[Slot]) -> Iterator[int]:
        return map(self._checksums.__getitem__, slots)

    def count(self, state: SlotState) -> int:
        return self._counts[state]

    def take(self, count: int) -> list[Slot]:
        """Free slots, now WRITING in their next generations; there must be so many."""
        start = len(self._free) - count
        assert start >= 0, "more slots than are free"
        taken = self._free[start:].tolist()
        del self._free[start:]
        taken.reverse()
        table, states, writing = self._table, self._states, int(SlotState.WRITING)
        for slot in taken:
            table[slot] += 1
            states[slot] = writing
        self._counts[SlotState.FREE] -= count
        self._counts[SlotState.WRITING] += count
        return cast("list[Slot]", taken)

    def bump(self, slot: Slot) -> None:
        """Whoever reads this slot in place throws the result away."""
        self._table[slot] += 1

    def finish(self, slot: Slot, state: SlotState, checksum: int) -> None:
        """WRITING → SEALED or PRIVATE."""
        self._checksums[slot] = checksum
        self._set(slot, state)

    def seal(self, slots: Sequence[Slot], checksums: Iterable[int]) -> None:
        """WRITING → SEALED."""
        kept, states, sealed = self._checksums, self._states, int(SlotState.SEALED)
        for slot, checksum in zip(slots, checksums, strict=True):
            kept[slot] = checksum
            states[slot] = sealed
        self._counts[SlotState.WRITING] -= len(slots)
        self._counts[SlotState.SEALED] += len(slots)

    def occupy(self, slot: Slot, checksum: int) -> None:
        """FREE → SEALED with bytes that are there already. Then call `forget_occupied`."""
        self.bump(slot)
        self.finish(slot, SlotState.SEALED, checksum)

    def forget_occupied(self) -> None:
        """Take the slots that are not free out of the free list."""
        self._free = array("I", [each for each in self._free if not self._states[each]])

    def doom(self, slot: Slot) -> None:
        self._set(slot, SlotState.DOOMED)

    def free(self, slots: Collection[Slot]) -> None:
        """Of any state; `on_free` is told once."""
        if not slots:
            return
        states, counts = self._states, self._counts
        for slot in slots:
            counts[states[slot]] -= 1
            states[slot] = 0
        counts[SlotState.FREE] += len(slots)
        self._free.extend(slots)
        self.on_free()

    def check_integrity(self) -> None:
        """Raises AssertionError when the counts and the free list contradict the states."""
        states = np.frombuffer(bytes(self._states), dtype=np.uint8)
        for state in SlotState:
            counted = int(np.count_nonzero(states == state))
            assert counted == self._counts[state], f"{counted} {state.name}, {self._counts[state]}"
        free = np.frombuffer(self._free, dtype=np.uint32)
        assert len(np.unique(free)) == len(free) == self._counts[SlotState.FREE]
        assert not states[free].any(), "a slot in the free list is not FREE"

    def _set(self, slot: Slot, state: SlotState) -> None:
        self._counts[self._states[slot]] -= 1
        self._counts[state] += 1
        self._states[slot] = state
