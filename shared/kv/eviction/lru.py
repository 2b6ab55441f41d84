"""Least recently used goes first."""

import heapq

from shared.kv.ids import BlockKey, Slot


class LruEviction:
    """A heap of (last use, slot) with lazy deletion: a parent that becomes a leaf late keeps its
    place by its own last use, which a plain list could not give it.
    """

    def __init__(self) -> None:
        self._now = 0
        self._last_used: dict[Slot, int] = {}
        self._candidates: set[Slot] = set()
        self._heap: list[tuple[int, Slot]] = []

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self.used(slot)

    def used(self, slot: Slot) -> None:
        self._now += 1
        self._last_used[slot] = self._now
        if slot in self._candidates:
            self._push(slot)

    def removed(self, slot: Slot) -> None:
        self._candidates.discard(slot)
        self._last_used.pop(slot, None)

    def offer(self, slot: Slot) -> None:
        if slot not in self._candidates:
            self._candidates.add(slot)
            self._push(slot)

    def withdraw(self, slot: Slot) -> None:
        self._candidates.discard(slot)

    def victim(self) -> Slot | None:
        while self._heap:
            last_used, slot = self._heap[0]
            if slot in self._candidates and self._last_used[slot] == last_used:
                return slot
            heapq.heappop(self._heap)
        return None

    def _push(self, slot: Slot) -> None:
        if len(self._heap) > 64 + 2 * len(self._candidates):
            self._heap = [(self._last_used[each], each) for each in self._candidates]
            heapq.heapify(self._heap)
            return
        heapq.heappush(self._heap, (self._last_used[slot], slot))
