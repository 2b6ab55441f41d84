"""Goes first: what is least likely to be used again, by what became of blocks of its kind.

A block's kind is how often it was used and what the request that used it last looked like: how much
of its prompt had been seen before, and how much was new. Long prompts that nobody has seen may come
back often in one workload and never in another, so the share of each kind that is used again within
a horizon is learnt as it happens, and also for blocks that are gone but remembered. Score: the
logarithm of that share, less one for each horizon since the last use, so that old promises fade.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from shared.kv.eviction.candidate_heap import CandidateHeap
from shared.kv.ids import BlockKey, Slot

HORIZON_USES = 20_000
"""In block uses of the whole pool: until then a block is used again or counts as given up."""
PRIOR_BLOCKS = 400
"""How many blocks of a kind weigh as much as what is known of all kinds."""
REMEMBERED = 4
"""Keys remembered for each block here."""
MAX_USES, MAX_NEW_BITS, MAX_SEEN_BITS = 6, 6, 3

Kind = tuple[int, int, int]
UNKNOWN: Kind = (-1, 0, 0)
"""Before the first request that used a block has ended."""


@dataclass(slots=True)
class _Fate:
    """What became of the blocks of a kind."""

    again: float = 0.0
    given_up: float = 0.0


@dataclass(slots=True)
class _Known:
    """A block that is here or remembered."""

    uses: int
    fate: _Fate
    """Of its kind."""
    used_at: int


class PredictedReuseEviction:
    def __init__(
        self, horizon_uses: int = HORIZON_USES, prior_blocks: float = PRIOR_BLOCKS
    ) -> None:
        if horizon_uses < 1:
            raise ValueError(f"horizon_uses: must be at least 1, is {horizon_uses}")
        self._horizon = horizon_uses
        self._prior = prior_blocks
        self._now = 0
        self._keys: dict[Slot, BlockKey] = {}
        self._here: dict[Slot, _Known] = {}
        self._known: dict[BlockKey, _Known] = {}
        """Those that are here and those that are remembered."""
        self._gone: OrderedDict[BlockKey, None] = OrderedDict()
        """Of the known ones, those that are not here, oldest first."""
        self._heap = CandidateHeap()
        self._open: deque[tuple[int, BlockKey, _Fate]] = deque()
        """Uses within the horizon."""
        self._fates: dict[Kind, _Fate] = {}
        self._all = _Fate()
        self._max_size = 0
        # The heap's own, without a call in between for each block that goes.
        self.offer = self._heap.offer
        self.withdraw = self._heap.withdraw
        self.victim = self._heap.lowest

    def stored(self, slot: Slot, key: BlockKey) -> None:
        self._keys[slot] = key
        self._max_size = max(self._max_size, len(self._keys))
        self._gone.pop(key, None)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(0, self._fate(UNKNOWN), self._now)
        self._here[slot] = known
        self.used(slot)

    def used(self, slot: Slot) -> None:
        known = self._here[slot]
        self._now = now = self._now + 1
        every, fate = self._all, known.fate
        if known.uses:
            fate.again += 1
            every.again += 1
        known.uses += 1
        known.used_at = now
        if self._open and now - self._open[0][0] > self._horizon:
            self._give_up_old()
        self._score(slot, known)

    def ended(self, slots: Sequence[Slot]) -> None:
        """Now it is known what kind of request it was that used these."""
        num_new = sum(self._here[slot].uses == 1 for slot in slots)
        num_seen = len(slots) - num_new
        new_bits = min(num_new.bit_length(), MAX_NEW_BITS)
        for slot in slots:
            known = self._here[slot]
            if known.uses == 1:
                # The first block is often common to all; lengths in half octaves.
                seen_bits = min(num_seen.bit_length(), MAX_SEEN_BITS) if num_seen > 1 else 0
                known.fate = self._fate((0, seen_bits, int(2 * log2(num_new))))
            else:
                known.fate = self._fate((1, min(known.uses, MAX_USES), new_bits))
            self._open.append((known.used_at, self._keys[slot], known.fate))
            self._score(slot, known)

    def removed(self, slot: Slot) -> None:
        self._heap.drop(slot)
        key = self._keys.pop(slot, None)
        if key is None:
            return
        del self._here[slot]
        self._gone[key] = None
        if len(self._gone) > REMEMBERED * self._max_size:
            oldest, _ = self._gone.popitem(last=False)
            del self._known[oldest]

    def _give_up_old(self) -> None:
        while self._open and self._now - self._open[0][0] > self._horizon:
            used_at, key, fate = self._open.popleft()
            known = self._known.get(key)
            if known is None or known.used_at == used_at:
                fate.given_up += 1
                self._all.given_up += 1

    def _fate(self, kind: Kind) -> _Fate:
        fate = self._fates.get(kind)
        if fate is None:
            fate = self._fates[kind] = _Fate()
        return fate

    def _score(self, slot: Slot, known: _Known) -> None:
        every, fate = self._all, known.fate
        of_all = (every.again + 1) / (every.again + every.given_up + 2)
        again = fate.again + self._prior * of_all
        share = again / (fate.again + fate.given_up + self._prior)
        self._heap.put(slot, known.used_at / self._horizon + log2(share))
