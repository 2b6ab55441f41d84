"""Least recently used goes first."""

from collections.abc import Sequence

from shared.kv.eviction.candidate_heap import CandidateHeap
from shared.kv.ids import BlockKey, Slot


class LruEviction:
    def __init__(self) -> None:
        self._now = 0
        self._heap = CandidateHeap()
        # The heap's own, without a call in between for each block that goes.
        self.offer = self._heap.offer
        self.withdraw = self._heap.withdraw
        self.victim = self._heap.lowest

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self.used(slot)

    def used(self, slot: Slot) -> None:
        self._now += 1
        self._heap.put(slot, self._now)

    def ended(self, slots: Sequence[Slot]) -> None:
        """Each use was told of when it was."""

    def removed(self, slot: Slot) -> None:
        self._heap.drop(slot)
