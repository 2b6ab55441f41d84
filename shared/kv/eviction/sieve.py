"""SIEVE (NSDI'24): a hand goes from old to new and takes the first block not used since it passed.

Only candidates can be taken, so the hand's way is kept as two heaps by age: ahead and behind.
"""

import heapq
from collections.abc import Sequence

from shared.kv.ids import BlockKey, Slot


class SieveEviction:
    def __init__(self) -> None:
        self._now = 0
        self._ages: dict[Slot, int] = {}
        """When it was stored; use does not move it."""
        self._visited: set[Slot] = set()
        self._candidates: set[Slot] = set()
        self._hand = 0
        self._ahead: list[tuple[int, Slot]] = []
        self._behind: list[tuple[int, Slot]] = []

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self._now += 1
        self._ages[slot] = self._now

    def used(self, slot: Slot) -> None:
        self._visited.add(slot)

    def ended(self, slots: Sequence[Slot]) -> None:
        """Each use was told of when it was."""

    def removed(self, slot: Slot) -> None:
        self._ages.pop(slot, None)
        self._visited.discard(slot)
        self._candidates.discard(slot)

    def offer(self, slot: Slot) -> None:
        if slot in self._candidates:
            return
        self._candidates.add(slot)
        age = self._ages[slot]
        heapq.heappush(self._ahead if age >= self._hand else self._behind, (age, slot))

    def withdraw(self, slot: Slot) -> None:
        self._candidates.discard(slot)

    def victim(self) -> Slot | None:
        """Moves the hand to the victim; asked again it finds the same one."""
        if not self._candidates:
            return None
        while True:
            while self._ahead:
                age, slot = self._ahead[0]
                if slot not in self._candidates or self._ages[slot] != age:
                    heapq.heappop(self._ahead)
                    continue
                self._hand = age
                if slot not in self._visited:
                    return slot
                self._visited.discard(slot)
                heapq.heappush(self._behind, heapq.heappop(self._ahead))
            self._ahead, self._behind, self._hand = self._behind, [], 0
