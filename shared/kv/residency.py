"""Which holder has which blocks, for matching. Pure; a hint, never the word on what can be read.

A holder is one incarnation of a node under one root. Because what a holder has is prefix-closed
(shared/kv never publishes a block without its parent), the depth of every holder along a chain is
found by bisection: where two positions have the same set of holders, so has all between them.

A key is kept as its first 8 bytes: two keys that share them can at worst give a wrong hint.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NewType

from shared.kv.ids import KEY_BYTES

HolderId = NewType("HolderId", int)
"""Small and dense; used again once a dropped holder was swept."""
FINGERPRINT_BYTES = 8
MIN_SETS = 1_024


@dataclass(frozen=True, slots=True)
class HolderDepth:
    """Leading blocks of a chain that one holder has."""

    holder: HolderId
    num_blocks: int


def fingerprint(key: bytes) -> int:
    """The part of a key that the view knows."""
    return int.from_bytes(key[:FINGERPRINT_BYTES], "little")


def fingerprints(keys: bytes) -> list[int]:
    """The fingerprints of packed keys."""
    if len(keys) % KEY_BYTES:
        raise ValueError(f"keys: {len(keys)} bytes are no whole keys of {KEY_BYTES}")
    return [
        int.from_bytes(keys[at : at + FINGERPRINT_BYTES], "little")
        for at in range(0, len(keys), KEY_BYTES)
    ]


class ResidencyView:
    """Fingerprint → set of holders (bits of an int). Dropping a holder is one step; its bits are
    swept later, in pieces of the caller's choice."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._sets: dict[int, int] = {}  # one object for each set of holders that occurs
        self._max_sets = MIN_SETS
        self._roots: dict[HolderId, bytes] = {}
        self._counts: dict[HolderId, int] = {}
        self._live_by_root: dict[bytes, int] = {}
        self._next_holder = 0
        self._free: list[HolderId] = []
        self._dropped = 0  # bits of holders that are not swept yet
        self._sweeping = 0
        self._to_sweep: Iterator[int] | None = None

    def add_holder(self, root: bytes) -> HolderId:
        """A new holder without blocks; mutates."""
        if self._free:
            holder = self._free.pop()
        else:
            holder = HolderId(self._next_holder)
            self._next_holder += 1
        self._roots[holder] = root
        self._counts[holder] = 0
        self._live_by_root[root] = self._live_by_root.get(root, 0) | (1 << holder)
        return holder

    def drop_holder(self, holder: HolderId) -> None:
        """From now on the holder has nothing and is in no match; `sweep` frees the memory."""
        root = self._roots.pop(holder)
        del self._counts[holder]
        remaining = self._live_by_root[root] & ~(1 << holder)
        if remaining:
            self._live_by_root[root] = remaining
        else:
            del self._live_by_root[root]
        self._dropped |= 1 << holder

    def store(self, holder: HolderId, keys: bytes) -> int:
        """The holder has these blocks; returns how many are new. Parents first over time."""
        return self.store_fingerprints(holder, fingerprints(keys))

    def store_fingerprints(self, holder: HolderId, prints: Iterable[int]) -> int:
        bit = 1 << holder
        added = 0
        masks = self._masks
        for print_ in prints:
            mask = masks.get(print_, 0)
            if not mask & bit:
                masks[print_] = self._shared(mask | bit)
                added += 1
        self._counts[holder] += added
        return added

    def remove(self, holder: HolderId, keys: bytes) -> int:
        """The holder has these blocks no more; returns how many it had."""
        bit = 1 << holder
        removed = 0
        for print_ in fingerprints(keys):
            mask = self._masks.get(print_, 0)
            if mask & bit:
                removed += 1
                if mask == bit:
                    del self._masks[print_]
                else:
                    self._masks[print_] = self._shared(mask & ~bit)
        self._counts[holder] -= removed
        return removed

    def holds(self, holder: HolderId, key: bytes) -> bool:
        return bool(self._masks.get(fingerprint(key), 0) >> holder & 1)

    def match(self, root: bytes, chain: bytes) -> list[HolderDepth]:
        """Holders of at least the first block of the packed chain, deepest first."""
        count, rest = divmod(len(chain), KEY_BYTES)
        if rest:
            raise ValueError(f"chain: {len(chain)} bytes are no whole keys of {KEY_BYTES}")
        live = self._live_by_root.get(root, 0)
        first = self._at(chain, 0) & live if count else 0
        if not first:
            return []
        depths: list[HolderDepth] = []
        self._split(chain, 0, first, count, 0, live, depths)
        depths.sort(key=lambda depth: (-depth.num_blocks, depth.holder))
        return depths

    def _split(
        self,
        chain: bytes,
        low: int,
        low_mask: int,
        high: int,
        high_mask: int,
        live: int,
        depths: list[HolderDepth],
    ) -> None:
        """Depths of the holders that have block `low` and not `high` (one past the end: none)."""
        ending = low_mask & ~high_mask
        if not ending:
            return
        if high - low == 1:
            depths.extend(HolderDepth(HolderId(bit), high) for bit in _bits(ending))
            return
        middle = (low + high) // 2
        # Closed: who has the middle has the low end too; who has the high end has the middle.
        mask = self._at(chain, middle) & live & low_mask | high_mask
        self._split(chain, low, low_mask, middle, mask, live, depths)
        self._split(chain, middle, mask, high, high_mask, live, depths)

    def _at(self, chain: bytes, index: int) -> int:
        start = index * KEY_BYTES
        return self._masks.get(
            int.from_bytes(chain[start : start + FINGERPRINT_BYTES], "little"), 0
        )

    def _shared(self, mask: int) -> int:
        """One object for equal sets: blocks of one chain mostly have the same holders."""
        known = self._sets.get(mask)
        if known is not None:
            return known
        if len(self._sets) >= self._max_sets:
            self._forget_unused_sets()
        self._sets[mask] = mask
        return mask

    def _forget_unused_sets(self) -> None:
        self._sets = {mask: mask for mask in self._masks.values()}
        self._max_sets = max(MIN_SETS, 2 * len(self._sets))

    def num_blocks(self, holder: HolderId) -> int:
        return self._counts[holder]

    @property
    def num_keys(self) -> int:
        """Distinct blocks, those of dropped holders that are not swept included."""
        return len(self._masks)

    @property
    def needs_sweep(self) -> bool:
        return bool(self._dropped or self._sweeping)

    def sweep(self, max_keys: int) -> bool:
        """Clear the bits of dropped holders in up to `max_keys` blocks; True when all is done."""
        if self._to_sweep is None:
            if not self._dropped:
                return True
            self._sweeping, self._dropped = self._dropped, 0
            self._to_sweep = iter(list(self._masks))
        for _ in range(max_keys):
            print_ = next(self._to_sweep, None)
            if print_ is None:
                self._end_sweep()
                return not self._dropped
            mask = self._masks.get(print_, 0)
            if mask & self._sweeping:
                if mask & ~self._sweeping:
                    self._masks[print_] = self._shared(mask & ~self._sweeping)
                else:
                    del self._masks[print_]
        return False

    def _end_sweep(self) -> None:
        self._free.extend(HolderId(bit) for bit in _bits(self._sweeping))
        self._sweeping = 0
        self._to_sweep = None
        self._forget_unused_sets()

    def check_integrity(self) -> None:
        """Raises AssertionError when counts, sets of holders or free ids do not agree."""
        live = sum(self._live_by_root.values())
        assert live == sum(1 << holder for holder in self._roots), "roots and holders differ"
        known = live | self._dropped | self._sweeping
        counts = dict.fromkeys(self._counts, 0)
        for mask in self._masks.values():
            assert mask, "a block without holders is kept"
            assert not mask & ~known, "a block has a holder that does not exist"
            for bit in _bits(mask & live):
                counts[HolderId(bit)] += 1
        assert counts == self._counts, "counts of blocks differ"
        free = {int(holder) for holder in self._free}
        assert not free & set(_bits(known)), "a holder is both free and in use"


def _bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
