"""Belady's bound: evicts the block whose next use is farthest; it knows the future.

Prefix-closed by itself: whoever uses a block uses its parents too.
"""

from collections.abc import Iterable, Sequence

from shared.kv.eviction.candidate_heap import CandidateHeap
from shared.kv.ids import BlockKey, Slot

NEVER = float("inf")


class BeladyEviction:
    """Must be told of every use, `stored` or `used`, in the order of the given chains."""

    def __init__(self, chains: Iterable[Sequence[BlockKey]]) -> None:
        self._uses: dict[BlockKey, list[int]] = {}
        for number, chain in enumerate(chains):
            for key in chain:
                self._uses.setdefault(key, []).append(number)
        for uses in self._uses.values():
            uses.reverse()
        self._keys: dict[Slot, BlockKey] = {}
        self._heap = CandidateHeap()

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self._keys[slot] = key
        self.used(slot)

    def used(self, slot: Slot) -> None:
        uses = self._uses[self._keys[slot]]
        uses.pop()
        self._heap.put(slot, -uses[-1] if uses else -NEVER)

    def ended(self, slots: Sequence[Slot]) -> None:
        """Each use was told of when it was."""

    def removed(self, slot: Slot) -> None:
        self._keys.pop(slot, None)
        self._heap.drop(slot)

    def offer(self, slot: Slot) -> None:
        self._heap.offer(slot)

    def withdraw(self, slot: Slot) -> None:
        self._heap.withdraw(slot)

    def victim(self) -> Slot | None:
        return self._heap.lowest()
