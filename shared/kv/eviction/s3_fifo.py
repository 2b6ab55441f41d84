"""S3-FIFO (SOSP'23): a small queue where new blocks must be used to stay, a main queue, ghosts."""

from collections import OrderedDict
from collections.abc import Sequence

from shared.kv.eviction.candidate_heap import CandidateHeap
from shared.kv.ids import BlockKey, Slot

SMALL_SHARE = 0.1
MAX_USES = 3


class S3FifoEviction:
    """Queues are heaps by time of entry, since only candidates can be taken from them."""

    def __init__(self) -> None:
        self._now = 0
        self._keys: dict[Slot, BlockKey] = {}
        self._uses: dict[Slot, int] = {}
        self._small = CandidateHeap()
        self._main = CandidateHeap()
        self._offered: set[Slot] = set()
        self._ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        self._is_small: set[Slot] = set()

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self._keys[slot] = key
        self._uses[slot] = 0
        if key in self._ghosts:
            del self._ghosts[key]
            self._enter(slot, self._main)
        else:
            self._is_small.add(slot)
            self._enter(slot, self._small)

    def used(self, slot: Slot) -> None:
        self._uses[slot] = min(self._uses[slot] + 1, MAX_USES)

    def ended(self, slots: Sequence[Slot]) -> None:
        """Each use was told of when it was."""

    def removed(self, slot: Slot) -> None:
        key = self._keys.pop(slot, None)
        if key is None:
            return
        self._offered.discard(slot)
        del self._uses[slot]
        if slot in self._is_small:
            self._is_small.discard(slot)
            self._small.drop(slot)
            self._ghosts[key] = None
            if len(self._ghosts) > max(1, len(self._main)):
                self._ghosts.popitem(last=False)
        else:
            self._main.drop(slot)

    def offer(self, slot: Slot) -> None:
        self._offered.add(slot)
        self._queue_of(slot).offer(slot)

    def withdraw(self, slot: Slot) -> None:
        self._offered.discard(slot)
        self._queue_of(slot).withdraw(slot)

    def victim(self) -> Slot | None:
        """Moves used blocks on; asked again it finds the same victim."""
        while True:
            small, main = self._small.lowest(), self._main.lowest()
            is_small_full = len(self._small) > SMALL_SHARE * len(self._keys)
            if small is not None and (is_small_full or main is None):
                if self._uses[small] <= 1:
                    return small
                self._small.drop(small)
                self._is_small.discard(small)
                self._uses[small] = 0
                self._enter(small, self._main)
            elif main is not None:
                if not self._uses[main]:
                    return main
                self._uses[main] -= 1
                self._enter(main, self._main)
            else:
                return None

    def _queue_of(self, slot: Slot) -> CandidateHeap:
        return self._small if slot in self._is_small else self._main

    def _enter(self, slot: Slot, queue: CandidateHeap) -> None:
        self._now += 1
        queue.put(slot, self._now)
        if slot in self._offered:
            queue.offer(slot)
