"""Which holder has which blocks, for matching. Pure; a hint, never the word on what can be read.

A holder is one incarnation of a node under one root. Because what a holder has is prefix-closed
(shared/kv never publishes a block without its parent), the depth of every holder along a chain is
found by jumps and bisection: where two positions have the same set of holders, so has all between.

A key is kept as its first 8 bytes: two keys that share them can at worst give a wrong hint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.kv.chain_search import find_depths
from shared.kv.fingerprints import NUM_CLASSES, depth_classes, fingerprint, fingerprints
from shared.kv.ids import KEY_BYTES
from shared.kv.print_table import (
    FIRST_PRINT,
    Classes,
    GrowingTable,
    Places,
    Prints,
    PrintTable,
    capacity_within,
)
from shared.kv.replica_sets import HolderId, ReplicaSets, disk_bit, held_bit, holders_in
from shared.kv.residency_sweep import Sweep

PIECE_PLACES = 1 << 17
MIN_SETS = 10_000
"""So many sets of holders are kept before unused ones are looked for."""
SETS_SHARE = 0.25
"""Of the budget, for sets of holders; the rest is the table's, which needs it while it grows."""
KEEP_SHARE = 0.8
"""Of what fits, so much is kept when the deepest blocks are let go."""


@dataclass(frozen=True, slots=True)
class HolderDepth:
    """Leading blocks of a chain that one holder has."""

    holder: HolderId
    num_blocks: int
    memory_blocks: int
    """Of these, how many from the start are not only on disk."""


class ResidencyView:
    """Fingerprint → number of a set of holders. Dropping a holder is one step; its bits are swept
    later, in pieces of the caller's choice. With `max_bytes`, the deepest blocks of all chains go
    when no more fit: a chain's end is of use to the fewest."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_sets = MIN_SETS
        self._table = GrowingTable(None if max_bytes is None else capacity_within(max_bytes))
        self._sets = ReplicaSets()
        self._roots: dict[HolderId, bytes] = {}
        self._counts: dict[HolderId, int] = {}
        self._disk_counts: dict[HolderId, int] = {}
        self._live_by_root: dict[bytes, int] = {}
        self._next_holder = 0
        self._free: list[HolderId] = []
        self._dropped = 0  # held bits of holders that are not swept yet
        self._sweep: Sweep | None = None
        self.horizon = NUM_CLASSES
        """Blocks of this depth class and beyond are not kept."""
        self.evicted_total = 0

    # --- holders -------------------------------------------------------------------------------
    def add_holder(self, root: bytes) -> HolderId:
        """A new holder without blocks; mutates."""
        if self._free:
            holder = self._free.pop()
        else:
            holder = HolderId(self._next_holder)
            self._next_holder += 1
        self._roots[holder] = root
        self._counts[holder] = self._disk_counts[holder] = 0
        self._live_by_root[root] = self._live_by_root.get(root, 0) | held_bit(holder)
        return holder

    def drop_holder(self, holder: HolderId) -> None:
        """From now on the holder has nothing and is in no match; `sweep` frees the memory."""
        root = self._roots.pop(holder)
        del self._counts[holder], self._disk_counts[holder]
        remaining = self._live_by_root[root] & ~held_bit(holder)
        if remaining:
            self._live_by_root[root] = remaining
        else:
            del self._live_by_root[root]
        self._dropped |= held_bit(holder)

    # --- changes -------------------------------------------------------------------------------
    def store(self, holder: HolderId, keys: bytes, start: int = 0, *, on_disk: bool = False) -> int:
        """The holder has these consecutive blocks of a chain, the first at index `start`.

        Returns how many are new. Parents first over time.
        """
        prints = fingerprints(keys)
        return self.store_prints(holder, prints, depth_classes(start, len(prints)), on_disk=on_disk)

    def store_prints(
        self, holder: HolderId, prints: Prints, classes: Classes, *, on_disk: bool = False
    ) -> int:
        """As `store`, of any blocks; those beyond the horizon are left out."""
        if not _are_distinct(prints):
            prints, chosen = np.unique(prints, return_index=True)
            classes = classes[chosen]
        if self.horizon < NUM_CLASSES:
            is_kept = classes < self.horizon
            prints, classes = prints[is_kept], classes[is_kept]
        if not len(prints):
            return 0
        table = self._table.gather(prints)
        places = table.find(prints)
        is_absent = places < 0
        if is_absent.any():
            num_new = int(np.count_nonzero(is_absent))
            if not self._table.has_room(num_new):
                self._lower_horizon(num_new)
                return self.store_prints(holder, prints, classes, on_disk=on_disk)
            if self._table.make_room(num_new):
                table = self._table.gather(prints)
                places = table.find(prints)
            places[is_absent] = new = table.insert(prints[is_absent])
            table.values[new] = 0
            table.classes[new] = classes[is_absent]
        return self._change(holder, table, places, "disk" if on_disk else "memory")

    def remove(self, holder: HolderId, keys: bytes) -> int:
        """The holder has these blocks no more; returns how many it had."""
        prints = fingerprints(keys)
        if not len(prints):
            return 0
        if not _are_distinct(prints):
            prints = np.unique(prints)
        table = self._table.gather(prints)
        places = table.find(prints)
        places = places[places >= 0]
        return -self._change(holder, table, places, "none") if len(places) else 0

    def _change(self, holder: HolderId, table: PrintTable, places: Places, tier: str) -> int:
        """Set the holder's bits at these places; returns by how much its blocks grew."""
        held, disk = held_bit(holder), disk_bit(holder)
        added = {"memory": held, "disk": held | disk, "none": 0}[tier]
        void = self._void
        kept = ~(held | disk | void | void << 1)
        numbers, inverse, counts = _distinct(table.values[places])
        following = np.empty(len(numbers), np.uint32)
        grown = grown_on_disk = 0
        for at, number in enumerate(numbers):
            before = self._sets.masks[number]
            after = before & kept | added
            following[at] = self._use(after)
            grown += (bool(added & held) - bool(before & held)) * counts[at]
            grown_on_disk += (bool(added & disk) - bool(before & disk)) * counts[at]
        table.values[places] = following[0] if inverse is None else following[inverse]
        if not added and not following.all():
            is_empty = table.values[places] == 0
            table.delete(places[is_empty])
        self._counts[holder] += grown
        self._disk_counts[holder] += grown_on_disk
        return grown

    def _use(self, mask: int) -> int:
        number = self._sets.number_of(mask)
        if self._sweep is not None:
            self._sweep.mark(number)
        return number

    @property
    def _void(self) -> int:
        """Held bits of holders that are no more."""
        return self._dropped | (0 if self._sweep is None else self._sweep.void)

    # --- looking -------------------------------------------------------------------------------
    def holds(self, holder: HolderId, key: bytes) -> bool:
        return bool(self._mask_of(fingerprint(key)) & held_bit(holder))

    def holders_of(self, root: bytes, key: bytes) -> list[tuple[HolderId, bool]]:
        """Who has this block, and whether only on disk."""
        mask = self._mask_of(fingerprint(key))
        live = self._live_by_root.get(root, 0)
        return [(holder, bool(mask & disk_bit(holder))) for holder in holders_in(mask, live)]

    def _mask_of(self, print_: int) -> int:
        return self._sets.masks[self._table.get(print_)]

    def match(self, root: bytes, chain: bytes) -> list[HolderDepth]:
        """Holders of at least the first block of the packed chain, deepest first."""
        count, rest = divmod(len(chain), KEY_BYTES)
        if rest:
            raise ValueError(f"chain: {len(chain)} bytes are no whole keys of {KEY_BYTES}")
        live = self._live_by_root.get(root, 0)
        if not count or not live:
            return []
        holders_at = self._reader(memoryview(chain).cast("Q"), live)
        found = find_depths(holders_at, count)
        depths = [
            HolderDepth(holder, depth, depth)
            for depth, mask in found
            for holder in holders_in(mask, live)
        ]
        if any(self._disk_counts[each.holder] for each in depths):
            depths = self._with_tiers(chain, depths)
        depths.sort(key=lambda depth: (-depth.num_blocks, depth.holder))
        return depths

    def _reader(self, words: memoryview, live: int) -> Callable[[int], int]:
        """Gives the holders of a block of the chain. Written out: it is all of a match' time."""
        masks, get, arrays = self._sets.masks, self._table.get, self._table.arrays()
        if arrays is None:

            def look_up(index: int) -> int:
                word = words[2 * index]
                return masks[get(word if word >= FIRST_PRINT else word + FIRST_PRINT)] & live

            return look_up
        prints, values, places = arrays

        def read(index: int) -> int:
            word = words[2 * index]
            if word < FIRST_PRINT:
                word += FIRST_PRINT
            place = word & places
            while (found := prints[place]) != word:
                if not found:
                    return 0
                place = (place + 1) & places
            return masks[values[place]] & live

        return read

    def _with_tiers(self, chain: bytes, depths: list[HolderDepth]) -> list[HolderDepth]:
        """How far each is in memory: that is not closed, so every block is looked at."""
        deepest = max(depth.num_blocks for depth in depths)
        prints = fingerprints(chain[: deepest * KEY_BYTES])
        table = self._table.move_all()
        numbers, inverse, _ = _distinct(table.values[table.find(prints)])
        tiered = []
        for each in depths:
            bit = disk_bit(each.holder)
            is_on_disk = np.array([bool(self._sets.masks[number] & bit) for number in numbers])
            along = np.full(deepest, is_on_disk[0]) if inverse is None else is_on_disk[inverse]
            at = int(np.argmax(along[: each.num_blocks]))
            memory = at if along[at] else each.num_blocks
            tiered.append(HolderDepth(each.holder, each.num_blocks, memory))
        return tiered

    def reserve(self, num_blocks: int) -> None:
        """So many more are coming: grow once and not by and by."""
        self._table.reserve(num_blocks)

    # --- size ----------------------------------------------------------------------------------
    def num_blocks(self, holder: HolderId) -> int:
        return self._counts[holder]

    @property
    def num_keys(self) -> int:
        """Distinct blocks, those of dropped holders that are not swept included."""
        return len(self._table)

    @property
    def num_bytes(self) -> int:
        return self._table.num_bytes + self._sets.num_bytes

    @property
    def fill(self) -> float:
        """How full it is of what it may hold; 0 without a limit."""
        limit = self._table.max_prints
        return 0.0 if limit is None else len(self._table) / limit

    def lift_horizon(self) -> None:
        """Keep blocks of every depth again; what was let go must be heard anew."""
        self.horizon = NUM_CLASSES

    def _lower_horizon(self, num_coming: int) -> None:
        """Let the deepest blocks go, of all chains alike, so that each stays closed."""
        limit = min(self._table.max_prints or 0, len(self._table) + num_coming)
        wanted = max(int(limit * KEEP_SHARE) - num_coming, 0)
        table = self._table.move_all()
        is_live = table.prints >= FIRST_PRINT
        kept = np.cumsum(np.bincount(table.classes[is_live], minlength=NUM_CLASSES))
        self.horizon = max(1, min(int(np.searchsorted(kept, wanted, "right")), self.horizon))
        goes = np.flatnonzero(is_live & (table.classes >= self.horizon))
        num_left = table.num_live - len(goes)
        if num_left > wanted:
            # First blocks alone are too many: which of them go is left to chance.
            left = np.flatnonzero(is_live & (table.classes < self.horizon))
            goes = np.concatenate([goes, left[: num_left - wanted]])
        numbers, _, counts = _distinct(table.values[goes])
        for number, count in zip(numbers, counts, strict=True):
            for holder in holders_in(self._sets.masks[number], self._live):
                self._counts[holder] -= count
                self._disk_counts[holder] -= (
                    count if self._sets.masks[number] & disk_bit(holder) else 0
                )
        table.delete(goes)
        self.evicted_total += len(goes)

    @property
    def _live(self) -> int:
        return sum(self._live_by_root.values())

    @property
    def needs_sweep(self) -> bool:
        return (
            bool(self._dropped)
            or self._sweep is not None
            or self._table.is_moving
            or len(self._sets) > self._max_sets
        )

    def sweep(self, max_places: int) -> bool:
        """Clear the bits of dropped holders in so many places; True when all is done."""
        if self._table.is_moving:
            self._table.move_on(max_places)
            return False
        if self._sweep is None:
            if not self.needs_sweep:
                return True
            self._sweep, self._dropped = Sweep(self._sets, self._dropped), 0
        if self._sweep.step(self._table, max_places):
            self._free.extend(holders_in(self._sweep.void, self._sweep.void))
            self._sweep = None
            self._max_sets = max(MIN_SETS, 2 * len(self._sets))
            if self._max_bytes and self._sets.num_bytes > SETS_SHARE * self._max_bytes:
                self._lower_horizon(len(self._table) // 5)
        return not self.needs_sweep

    # --- content, for comparing ----------------------------------------------------------------
    @property
    def generation(self) -> int:
        """Changes whenever blocks change their places."""
        return self._table.generation

    def prints_of(self, holder: HolderId, start: int = 0) -> Iterator[tuple[int, Prints]]:
        """(next place, what the holder has before it), from a place on. Do not change meanwhile."""
        table = self._table.move_all()
        bit = held_bit(holder)
        has = np.array([bool(mask & bit) for mask in self._sets.masks])
        while start < table.capacity:
            end = start + PIECE_PLACES
            yield end, table.prints[start:end][has[table.values[start:end]]]
            start = end

    def check_integrity(self) -> None:
        """Raises AssertionError when counts, sets of holders or free ids do not agree."""
        live = self._live
        assert live == sum(held_bit(holder) for holder in self._roots), "roots and holders differ"
        held = live | self._void
        known = held | held << 1
        counts, disk_counts = dict.fromkeys(self._counts, 0), dict.fromkeys(self._counts, 0)
        table = self._table.move_all()
        is_live = table.prints >= FIRST_PRINT
        assert table.num_live == np.count_nonzero(is_live), "blocks are miscounted"
        assert table.num_gone == np.count_nonzero(table.prints == 1), "marks are miscounted"
        assert (
            not len(places := np.flatnonzero(is_live))
            or (table.find(table.prints[places]) == places).all()
        ), "a block is not found where it is"
        numbers, _, uses = _distinct(table.values[is_live])
        for number, count in zip(numbers, uses, strict=True):
            mask = self._sets.masks[number]
            assert mask, "a block without holders is kept"
            assert not mask & ~known, "a block has a holder that does not exist"
            for holder in holders_in(mask, live):
                counts[holder] += count
                disk_counts[holder] += count if mask & disk_bit(holder) else 0
        assert counts == self._counts, "counts of blocks differ"
        assert disk_counts == self._disk_counts, "counts of blocks on disk differ"
        free = {int(holder) for holder in self._free}
        assert not free & set(holders_in(held, held)), "a holder is both free and in use"


def _are_distinct(prints: Prints) -> bool:
    ordered = np.sort(prints)
    return not (ordered[1:] == ordered[:-1]).any()


def _distinct(
    values: npt.NDArray[np.uint32],
) -> tuple[list[int], npt.NDArray[np.intp] | None, list[int]]:
    """Distinct values, which of them each is (None: all the same), and how often each comes."""
    if not len(values):
        return [], None, []
    first = values[0]
    if (values == first).all():
        return [int(first)], None, [len(values)]
    found, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return found.tolist(), inverse, counts.tolist()
