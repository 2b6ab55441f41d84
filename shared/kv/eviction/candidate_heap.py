"""Candidates by score, the lowest first: what policies with one number per block share."""

import heapq

from shared.kv.ids import Slot


class CandidateHeap:
    """Every block has a score, only candidates can be found. Deletion is lazy.

    A parent that becomes a candidate late keeps its place by its own score, which a plain list
    could not give it.
    """

    def __init__(self) -> None:
        self._scores: dict[Slot, float] = {}
        self._candidates: set[Slot] = set()
        self._first: tuple[float, Slot] | None = None
        """Apart from the heap and not above it: while a chain goes from its end, each parent comes
        and goes here."""
        self._heap: list[tuple[float, Slot]] = []

    def __len__(self) -> int:
        """Blocks, candidates or not."""
        return len(self._scores)

    def score(self, slot: Slot) -> float:
        return self._scores[slot]

    def put(self, slot: Slot, score: float) -> None:
        """The block is known with this score from now on."""
        self._scores[slot] = score
        if slot in self._candidates:
            self._push(slot)

    def drop(self, slot: Slot) -> float | None:
        """Forget the block; its last score."""
        self._candidates.discard(slot)
        if self._first is not None and self._first[1] == slot:
            self._first = None
        return self._scores.pop(slot, None)

    def offer(self, slot: Slot) -> None:
        if slot not in self._candidates:
            self._candidates.add(slot)
            self._push(slot)

    def withdraw(self, slot: Slot) -> None:
        self._candidates.discard(slot)

    def lowest(self) -> Slot | None:
        first = self._first
        while first is not None or self._heap:
            if first is None:
                first = heapq.heappop(self._heap)
            score, slot = first
            if slot in self._candidates and self._scores[slot] == score:
                self._first = first
                return slot
            first = None
        self._first = None
        return None

    def _push(self, slot: Slot) -> None:
        entry = (self._scores[slot], slot)
        heap = self._heap
        if self._first is None:
            if heap and heap[0] < entry:
                heapq.heappush(heap, entry)
            else:
                self._first = entry
        elif entry < self._first:
            heapq.heappush(heap, self._first)
            self._first = entry
        else:
            heapq.heappush(heap, entry)
        if len(heap) > 64 + 2 * len(self._candidates):
            self._first = None
            self._heap = [(self._scores[each], each) for each in self._candidates]
            heapq.heapify(self._heap)
