"""The readable blocks of a pool by key, linked parent to child. Frees nothing, evicts nothing.

Prefix-closed by construction: a block enters under a present parent and leaves before it.
`pins` of a block count its holds and its children that are pinned: a block without pins can be
evicted together with everything below it.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from shared.kv.ids import SEGMENT_BLOCKS, BlockKey, Slot

NONE = -1


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block is in its chain."""

    key: BlockKey
    parent: BlockKey | None
    head: BlockKey
    """First block of the index segment that the block is in."""
    index: int


def place_of(chain: Sequence[BlockKey], index: int) -> BlockPlace:
    """Of a block of a chain that starts at its first block."""
    parent = chain[index - 1] if index else None
    return BlockPlace(chain[index], parent, chain[index - index % SEGMENT_BLOCKS], index)


class BlockTree:
    """Blocks by key and by slot. `on_candidate(slot, is_candidate)` tells what may be evicted."""

    def __init__(self, num_slots: int, on_candidate: Callable[[Slot, bool], None]) -> None:
        self._on_candidate = on_candidate
        self._slots: dict[BlockKey, Slot] = {}
        self._places: dict[Slot, BlockPlace] = {}
        self._parents = array("i", [NONE]) * num_slots
        self._first_child = array("i", [NONE]) * num_slots
        self._next = array("i", [NONE]) * num_slots
        self._previous = array("i", [NONE]) * num_slots
        self._pins = array("I", bytes(4 * num_slots))
        self.num_evictable = 0

    def __len__(self) -> int:
        return len(self._slots)

    def slot_of(self, key: BlockKey) -> Slot | None:
        return self._slots.get(key)

    def key_of(self, slot: Slot) -> BlockKey:
        return self._places[slot].key

    def place_at(self, slot: Slot) -> BlockPlace | None:
        """The block in a slot, None when nothing readable is in it."""
        return self._places.get(slot)

    def in_order(self, slots: Iterable[Slot]) -> list[Slot]:
        """Those of these that hold a readable block, by their place in the chain."""
        places = [(place.index, slot) for slot in slots if (place := self._places.get(slot))]
        places.sort()
        return [slot for _, slot in places]

    def is_candidate(self, slot: Slot, gone: AbstractSet[Slot] = frozenset()) -> bool:
        """Nobody holds it and it has no children, but for those that are taken as gone."""
        if self._pins[slot] or (self._first_child[slot] != NONE and not gone):
            return False
        return all(Slot(each) in gone for each in self._children(slot))

    def parent_of(self, slot: Slot) -> Slot | None:
        parent = self._parents[slot]
        return None if parent == NONE else Slot(parent)

    def add(self, slot: Slot, place: BlockPlace) -> None:
        """A new block with one pin (whoever sealed it holds it)."""
        self._slots[place.key] = slot
        self._places[slot] = place
        parent = NONE if place.parent is None else self._slots[place.parent]
        self._parents[slot] = parent
        self._first_child[slot] = self._previous[slot] = self._next[slot] = NONE
        self._pins[slot] = 1
        if parent != NONE:
            self._link(slot, parent)
            self.pin(Slot(parent))

    def remove(self, slot: Slot) -> BlockPlace:
        """Take out a block that has no children."""
        assert self._first_child[slot] == NONE, "a parent leaves after its children"
        place = self._places.pop(slot)
        del self._slots[place.key]
        if self._pins[slot] == 0:
            self._withdraw(slot)
        parent = self._parents[slot]
        if parent != NONE:
            self._unlink(slot, parent)
            if self._pins[slot] > 0:
                self.unpin(Slot(parent))
            elif self.is_candidate(Slot(parent)):
                self._on_candidate(Slot(parent), True)
        self._pins[slot] = 0
        return place

    def pin(self, slot: Slot) -> None:
        at: int = slot
        while at != NONE:
            self._pins[at] += 1
            if self._pins[at] > 1:
                return
            self._withdraw(Slot(at))
            at = self._parents[at]

    def unpin(self, slot: Slot) -> None:
        at: int = slot
        while at != NONE:
            self._pins[at] -= 1
            if self._pins[at] > 0:
                return
            self.num_evictable += 1
            if self._first_child[at] == NONE:
                self._on_candidate(Slot(at), True)
            at = self._parents[at]

    def path(self, slot: Slot) -> list[BlockKey]:
        """Keys from the first block of the chain to this one."""
        keys: list[BlockKey] = []
        at: int = slot
        while at != NONE:
            keys.append(self._places[Slot(at)].key)
            at = self._parents[at]
        keys.reverse()
        return keys

    def page(self, cursor: int, max_blocks: int) -> tuple[list[BlockPlace], int | None]:
        """Blocks in slots from `cursor` on, and where the next page starts."""
        places: list[BlockPlace] = []
        for number in range(cursor, len(self._pins)):
            place = self._places.get(Slot(number))
            if place is None:
                continue
            if len(places) == max_blocks:
                return places, number
            places.append(place)
        return places, None

    def subtree(self, slot: Slot) -> list[Slot]:
        """The block and everything below it, every child before its parent."""
        found = [slot]
        for each in found:
            child = self._first_child[each]
            while child != NONE:
                found.append(Slot(child))
                child = self._next[child]
        found.reverse()
        return found

    def check_integrity(self, num_holds: Callable[[Slot], int]) -> None:
        """Raises AssertionError when links, pins or counts contradict one another."""
        pins = {slot: num_holds(slot) for slot in self._places}
        children: dict[Slot, set[int]] = {slot: set() for slot in self._places}
        for slot, place in sorted(self._places.items(), key=lambda item: -item[1].index):
            assert self._slots[place.key] == slot
            assert pins[slot] == self._pins[slot], f"slot {slot}: {self._pins[slot]} pins"
            parent = self._parents[slot]
            assert (place.parent is None) == (parent == NONE) == (place.index == 0)
            if parent != NONE:
                assert self._places[Slot(parent)].key == place.parent
                assert self._places[Slot(parent)].index == place.index - 1
                pins[Slot(parent)] += pins[slot] > 0
                children[Slot(parent)].add(slot)
        for slot, expected in children.items():
            assert {*self._children(slot)} == expected
        assert self.num_evictable == sum(count == 0 for count in pins.values())
        assert len(self._slots) == len(self._places)

    def _children(self, slot: int) -> Iterator[int]:
        child = self._first_child[slot]
        while child != NONE:
            yield child
            child = self._next[child]

    def _withdraw(self, slot: Slot) -> None:
        self.num_evictable -= 1
        self._on_candidate(slot, False)

    def _link(self, slot: Slot, parent: int) -> None:
        first = self._first_child[parent]
        self._next[slot] = first
        if first != NONE:
            self._previous[first] = slot
        self._first_child[parent] = slot

    def _unlink(self, slot: Slot, parent: int) -> None:
        before, after = self._previous[slot], self._next[slot]
        if before == NONE:
            self._first_child[parent] = after
        else:
            self._next[before] = after
        if after != NONE:
            self._previous[after] = before
