"""How many holds each slot has. Most have one, so sets do most of the work, many slots at once."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from shared.kv.ids import Slot


class HoldCounts:
    """Counts of 1 are members of a set; what is beyond is counted apart."""

    def __init__(self) -> None:
        self._held: set[Slot] = set()
        self._more: dict[Slot, int] = {}
        """Holds beyond the first."""

    def __len__(self) -> int:
        """Different slots."""
        return len(self._held)

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._held

    def count(self, slot: Slot) -> int:
        return (slot in self._held) + self._more.get(slot, 0)

    def add(self, slots: AbstractSet[Slot]) -> None:
        """One hold more of each."""
        for slot in self._held & slots:
            self._more[slot] = self._more.get(slot, 0) + 1
        self._held |= slots

    def take(self, slots: AbstractSet[Slot]) -> None:
        """One hold less of each; each must have one."""
        again = self._more.keys() & slots if self._more else frozenset()
        for slot in again:
            if self._more[slot] == 1:
                del self._more[slot]
            else:
                self._more[slot] -= 1
        self._held -= slots - again if again else slots

    def check_integrity(self, expected: Mapping[Slot, int]) -> None:
        """Raises AssertionError when the counts are not those expected."""
        assert self._held == expected.keys()
        assert self._more.keys() <= self._held
        assert all(self.count(slot) == count for slot, count in expected.items())
