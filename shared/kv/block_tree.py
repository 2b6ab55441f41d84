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


@dataclass(slots=True)
class BlockPlace:
    """Where a block is in its chain. A value; not frozen, which would take four times as long."""

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
    """Blocks by key and by slot. `offer` and `withdraw` are told which may be evicted alone.

    A block is numbers in arrays and two dicts of plain values: the garbage collector need not look
    at a million of them. A block that is removed is not withdrawn before.
    """

    def __init__(
        self, num_slots: int, offer: Callable[[Slot], None], withdraw: Callable[[Slot], None]
    ) -> None:
        self._offer = offer
        self._withdraw = withdraw
        self._slots: dict[BlockKey, Slot] = {}
        self._keys: dict[int, BlockKey] = {}
        """By slot; as the arrays, without a call of Slot for each look-up."""
        self._indices = array("I", bytes(4 * num_slots))
        self._heads = array("i", [NONE]) * num_slots
        """Slot of the first block of the index segment."""
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
        return self._keys[slot]

    def leading(self, keys: Sequence[BlockKey]) -> list[Slot]:
        """Slots of the blocks from the first key on, up to one that is not here."""
        slot_of = self._slots.get
        slots: list[Slot] = []
        for key in keys:
            slot = slot_of(key)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def depth(self, chain: Sequence[BlockKey]) -> int:
        """How many of a chain are here; by bisection, for what is here is closed under prefixes."""
        here = self._slots
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in here:
                low = middle + 1
            else:
                high = middle
        return low

    def keys_of(self, slots: Iterable[Slot]) -> Iterator[BlockKey]:
        return map(self._keys.__getitem__, slots)

    def place_at(self, slot: Slot) -> BlockPlace | None:
        """The block in a slot, None when nothing readable is in it."""
        key = self._keys.get(slot)
        if key is None:
            return None
        parent = self.parent_of(slot)
        head = self._keys[self._heads[slot]]
        return BlockPlace(
            key, None if parent is None else self._keys[parent], head, self._indices[slot]
        )

    def in_order(self, slots: Iterable[Slot]) -> list[Slot]:
        """Those of these that hold a readable block, by their place in the chain."""
        readable = [slot for slot in slots if slot in self._keys]
        readable.sort()
        readable.sort(key=self._indices.__getitem__)
        return readable

    def is_candidate(self, slot: Slot, gone: AbstractSet[Slot] = frozenset()) -> bool:
        """Nobody holds it and it has no children, but for those that are taken as gone."""
        if self._pins[slot] or (self._first_child[slot] != NONE and not gone):
            return False
        return all(Slot(each) in gone for each in self._children(slot))

    def parent_of(self, slot: Slot) -> Slot | None:
        parent = self._parents[slot]
        return None if parent == NONE else Slot(parent)

    def add(
        self, slots: Sequence[Slot], keys: Sequence[BlockKey], parent: BlockKey | None, index: int
    ) -> int:
        """New consecutive blocks of a chain, the first at `index` and below `parent`, each with one
        pin (whoever sealed it holds it); up to one that is here already: how many."""
        by_key, by_slot = self._slots, self._keys
        indices, heads, parents, pins = self._indices, self._heads, self._parents, self._pins
        first_child, previous, after = self._first_child, self._previous, self._next
        above: int = NONE if parent is None else by_key[parent]
        head: int = NONE if above == NONE else heads[above]
        count = 0
        for slot, key in zip(slots, keys, strict=True):
            if key in by_key:
                break
            by_key[key] = slot
            by_slot[slot] = key
            indices[slot] = at = index + count
            if at % SEGMENT_BLOCKS == 0:
                head = slot
            heads[slot] = head
            parents[slot] = above
            first_child[slot] = previous[slot] = after[slot] = NONE
            pins[slot] = 1
            if count:  # the one before is new, too: this is its only child
                pins[above] = 2
                first_child[above] = slot
            elif above != NONE:
                self.pin((Slot(above),))  # before it has a child: it may be a candidate
                self._link(slot, above)
            above = slot
            count += 1
        return count

    def remove(self, slot: Slot) -> tuple[BlockKey, BlockKey]:
        """Take out a block that has no children: its key and that of its segment's head."""
        assert self._first_child[slot] == NONE, "a parent leaves after its children"
        key = self._keys[slot]
        head = self._keys[self._heads[slot]]
        del self._keys[slot], self._slots[key]
        parent = self._parents[slot]
        is_last = False
        if parent != NONE:
            before, after = self._previous[slot], self._next[slot]
            is_last = before == after == NONE
            if before == NONE:
                self._first_child[parent] = after
            else:
                self._next[before] = after
            if after != NONE:
                self._previous[after] = before
        if not self._pins[slot]:
            self.num_evictable -= 1
            if is_last and not self._pins[parent]:
                self._offer(Slot(parent))
        else:
            self._pins[slot] = 0
            if parent != NONE:
                self.unpin((Slot(parent),))
        return key, head

    def pin(self, slots: Iterable[Slot]) -> None:
        """One more pin for each of these, and for the parents of those that had none."""
        pins, parents, first_child = self._pins, self._parents, self._first_child
        at: int
        for at in slots:
            while at != NONE:
                pins[at] = count = pins[at] + 1
                if count > 1:
                    break
                self.num_evictable -= 1
                if first_child[at] == NONE:
                    self._withdraw(Slot(at))
                at = parents[at]

    def unpin(self, slots: Iterable[Slot]) -> None:
        """One pin less for each of these, and for the parents of those that have none then."""
        pins, parents, first_child = self._pins, self._parents, self._first_child
        at: int
        for at in slots:
            while at != NONE:
                pins[at] = count = pins[at] - 1
                if count:
                    break
                self.num_evictable += 1
                if first_child[at] == NONE:
                    self._offer(Slot(at))
                at = parents[at]

    def path(self, slot: Slot) -> list[BlockKey]:
        """Keys from the first block of the chain to this one."""
        keys: list[BlockKey] = []
        at: int = slot
        while at != NONE:
            keys.append(self._keys[at])
            at = self._parents[at]
        keys.reverse()
        return keys

    def page(self, cursor: int, max_blocks: int) -> tuple[list[BlockPlace], int | None]:
        """Blocks in slots from `cursor` on, and where the next page starts."""
        places: list[BlockPlace] = []
        for number in range(cursor, len(self._pins)):
            if number not in self._keys:
                continue
            if len(places) == max_blocks:
                return places, number
            place = self.place_at(Slot(number))
            assert place is not None
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
        pins = {slot: num_holds(slot) for slot in self._slots.values()}
        children: dict[Slot, set[int]] = {slot: set() for slot in pins}
        for slot in sorted(pins, key=lambda each: -self._indices[each]):
            assert self._slots[self._keys[slot]] == slot
            assert pins[slot] == self._pins[slot], f"slot {slot}: {self._pins[slot]} pins"
            index, parent, head = self._indices[slot], self._parents[slot], self._heads[slot]
            assert (parent == NONE) == (index == 0)
            assert head in self._keys
            assert self._indices[head] == index - index % SEGMENT_BLOCKS
            if parent != NONE:
                assert parent in self._keys
                assert self._indices[parent] == index - 1
                assert head == (self._heads[parent] if index % SEGMENT_BLOCKS else slot)
                pins[Slot(parent)] += pins[slot] > 0
                children[Slot(parent)].add(slot)
        for slot, expected in children.items():
            assert {*self._children(slot)} == expected
        assert self.num_evictable == sum(count == 0 for count in pins.values())
        assert len(self._slots) == len(self._keys)

    def _children(self, slot: int) -> Iterator[int]:
        child = self._first_child[slot]
        while child != NONE:
            yield child
            child = self._next[child]

    def _link(self, slot: Slot, parent: int) -> None:
        first = self._first_child[parent]
        self._next[slot] = first
        if first != NONE:
            self._previous[first] = slot
        self._first_child[parent] = slot
