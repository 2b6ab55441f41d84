"""Least frequently used goes first, of equals the least recently used."""

from collections.abc import Sequence

from shared.kv.eviction.candidate_heap import CandidateHeap
from shared.kv.ids import BlockKey, Slot

COUNT_STEP = float(1 << 40)
"""One more use outweighs any recency; both stay exact in a float."""


class LfuEviction:
    """Counts uses while a block is here; forgets it with the block."""

    def __init__(self) -> None:
        self._now = 0
        self._counts: dict[Slot, int] = {}
        self._heap = CandidateHeap()

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self._counts[slot] = 0
        self.used(slot)

    def used(self, slot: Slot) -> None:
        self._now += 1
        self._counts[slot] = min(self._counts[slot] + 1, 4_095)
        self._heap.put(slot, self._counts[slot] * COUNT_STEP + self._now)

    def ended(self, slots: Sequence[Slot]) -> None:
        """Each use was told of when it was."""

    def removed(self, slot: Slot) -> None:
        self._counts.pop(slot, None)
        self._heap.drop(slot)

    def offer(self, slot: Slot) -> None:
        self._heap.offer(slot)

    def withdraw(self, slot: Slot) -> None:
        self._heap.withdraw(slot)

    def victim(self) -> Slot | None:
        return self._heap.lowest()
