"""Uses count half as much every half-life; who was used once counts less. Lowest sum goes first.

Between least recently and least frequently used. All sums decay alike, so their order does not
change with time: a block's score is the logarithm of its sum, seen from time 0. What a block had
earned is remembered for a while after it is gone, by key, for the gaps of a conversation are longer
than the stay in a small pool.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import log2

from shared.kv.eviction.candidate_heap import CandidateHeap
from shared.kv.ids import BlockKey, Slot

HALF_LIFE_USES = 10_000.0
"""In block uses, of all blocks. Chosen by looking at two public traces whole, not held out."""
UNPROVEN_HALVINGS = 3.0
"""A first use counts 2^-3 of a later one: most blocks are never used again."""
REMEMBERED = 4
"""Keys remembered for each block here."""


class DecayedFrequencyEviction:
    def __init__(
        self,
        half_life_uses: float = HALF_LIFE_USES,
        unproven_halvings: float = UNPROVEN_HALVINGS,
    ) -> None:
        if half_life_uses <= 0:
            raise ValueError(f"half_life_uses: must be more than 0, is {half_life_uses}")
        self._tick = 1.0 / half_life_uses
        self._unproven = unproven_halvings
        self._now = 0.0
        self._keys: dict[Slot, BlockKey] = {}
        self._heap = CandidateHeap()
        self._remembered: OrderedDict[BlockKey, float] = OrderedDict()
        """The oldest first: a dict would look for it past all that left before."""
        self._max_size = 0
        # The heap's own, without a call in between for each block that goes.
        self.offer = self._heap.offer
        self.withdraw = self._heap.withdraw
        self.victim = self._heap.lowest

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self._now += self._tick
        earned = self._remembered.pop(key, None)
        self._keys[slot] = key
        score = self._now - self._unproven if earned is None else self._with_use(earned)
        self._heap.put(slot, score)
        self._max_size = max(self._max_size, len(self._keys))

    def used(self, slot: Slot) -> None:
        self._now += self._tick
        self._heap.put(slot, self._with_use(self._heap.score(slot)))

    def ended(self, slots: Sequence[Slot]) -> None:
        """Each use was told of when it was."""

    def removed(self, slot: Slot) -> None:
        score = self._heap.drop(slot)
        key = self._keys.pop(slot, None)
        if score is None or key is None:
            return
        self._remembered[key] = score
        if len(self._remembered) > REMEMBERED * self._max_size:
            self._remembered.popitem(last=False)

    def _with_use(self, score: float) -> float:
        """log2(2^score + 2^now)."""
        high, low = (score, self._now) if score > self._now else (self._now, score)
        return high + log2(1.0 + 2.0 ** (low - high))
