"""The pool of one node: the sole owner of its slots, holds and readable blocks. Pure bookkeeping.

It sees no bytes: checksums come from outside. Refusals are values; an exception is a broken caller.
Readable blocks are always prefix-closed: a block is sealed only under a readable parent (or as the
first of its chain) and removed together with everything below it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, repeat, takewhile

import numpy as np
import numpy.typing as npt

from shared.kv.block_tree import BlockPlace, BlockTree, place_of
from shared.kv.eviction.base import EvictionPolicy
from shared.kv.eviction.look_ahead import look_ahead
from shared.kv.holders import HolderTable
from shared.kv.ids import BlockKey, Generation, Slot
from shared.kv.pool_counts import PoolCounts, counts_of
from shared.kv.pool_integrity import check_parts
from shared.kv.pool_values import (
    HeldBlock,
    NotYours,
    Refusal,
    SealedItem,
    SealItem,
    check_keys,
    has_key,
)
from shared.kv.residency_log import ResidencyChange, ResidencyLog, StoredBlocks, runs_of
from shared.kv.slots import SlotState, SlotTable


class BlockPool:
    """Slots, holds, the readable set, eviction and the log of residency changes."""

    def __init__(
        self,
        num_slots: int,
        policy: EvictionPolicy,
        generations: npt.NDArray[np.uint64] | None = None,
        log: ResidencyLog | None = None,
    ) -> None:
        self._slots = SlotTable(num_slots, generations)
        self._holders = HolderTable()
        self._policy = policy
        self._tree = BlockTree(num_slots, policy.offer, policy.withdraw)
        self.log = log or ResidencyLog()
        self.on_room: Callable[[], None] = lambda: None
        """A slot came free or may be evicted: `allocate` may give more than before."""
        self._slots.on_free = lambda: self.on_room()
        self._evictions_total = self._quarantined_total = 0

    def num_available(self, owner: str, cap: int) -> int:
        """Slots that `allocate` would give this owner now."""
        available = self._slots.count(SlotState.FREE) + self._tree.num_evictable
        return max(0, min(cap - self._holders.num_own(owner), available))

    def allocate(
        self, owner: str, handle: str, num_slots: int, cap: int
    ) -> list[HeldBlock] | Refusal:
        """WRITING slots, all or none, evicting what nobody holds. `cap` bounds the owner's."""
        room = cap - self._holders.num_own(owner)
        if num_slots > room:
            return Refusal("over_cap", num_slots, max(room, 0))
        available = self._slots.count(SlotState.FREE) + self._tree.num_evictable
        if num_slots > available:
            return Refusal("pool_full", num_slots, available)
        self.evict(num_slots - self._slots.count(SlotState.FREE))
        taken = self._slots.take(num_slots)
        self._holders.give(owner, handle, taken)
        return list(map(HeldBlock, taken, self._slots.generations(taken), repeat(0)))

    def owns_writing(self, owner: str, handle: str, slot: Slot, generation: Generation) -> bool:
        """Whether the handle may write this slot now, in this generation."""
        return self.is_writing(owner, handle, slot) and self._slots.generation(slot) == generation

    def is_writing(self, owner: str, handle: str, slot: Slot) -> bool:
        """Whether the handle may write this slot now."""
        is_own = self._holders.owns(owner, handle, slot)
        return is_own and self._slots.is_in(slot, SlotState.WRITING)

    def generation(self, slot: Slot) -> Generation:
        return self._slots.generation(slot)

    def seal(
        self, owner: str, handle: str, start: int, chain: Sequence[BlockKey], items: list[SealItem]
    ) -> list[SealedItem]:
        """WRITING slots become readable (with key) or private; none when one is not the caller's.

        The keyed items are chain[start], chain[start+1], … A key that is readable already: its
        slot here is freed and the one that has it is held instead. A block whose parent is not
        readable here becomes private, and so do those after it.
        """
        check_keys(start, chain, items)
        if not self._may_seal(owner, handle, items):
            wrong = [
                f"slot {item.slot} generation {item.generation}"
                for item in items
                if not self.owns_writing(owner, handle, item.slot, item.generation)
            ]
            what = wrong[0] if wrong else "a slot named twice"
            raise NotYours(f"{what} is not a WRITING slot of {handle}")
        done: list[SealedItem] = []
        index = start
        while len(done) < len(items):
            item = items[len(done)]
            if item.key is None:
                done.append(self._keep_private(item))
                continue
            existing = self._tree.slot_of(item.key)
            if existing is not None:
                self._free_own(owner, handle, item.slot)
                self._hold(owner, handle, [existing])
                self._policy.used(existing)
                done.append(SealedItem(self._held(existing), True, is_duplicate=True))
                index += 1
            elif index and self._tree.slot_of(chain[index - 1]) is None:
                done.append(self._keep_private(item))
                index += 1
            else:
                keyed = takewhile(has_key, islice(items, len(done), None))
                readable = self._make_readable(owner, handle, index, chain, list(keyed))
                done += readable
                index += len(readable)
        return done

    def free_own(self, owner: str, handle: str, blocks: Sequence[HeldBlock]) -> None:
        """Give back WRITING or PRIVATE slots early; one that is in another use by now stays."""
        for block in blocks:
            is_same_use = self._slots.generation(block.slot) == block.generation
            if is_same_use and self._holders.owns(owner, handle, block.slot):
                self._free_own(owner, handle, block.slot)

    def lease(
        self,
        owner: str,
        handle: str,
        keys: Sequence[BlockKey],
        cap: int | None = None,
        *,
        is_use: bool = True,
    ) -> list[HeldBlock]:
        """Hold the leading run of `keys` that is readable here, within what the owner may hold.

        Not `is_use`: eviction does not hear of it.
        """
        slots = self._tree.leading(keys)
        if cap is not None:
            slots = slots[: self._holders.num_allowed(owner, slots, cap)]
        if not slots:
            return []
        self._hold(owner, handle, slots)
        if is_use:
            used = self._policy.used
            for slot in reversed(slots):  # the root is the most recent
                used(slot)
        return self._all_held(slots)

    def num_held(self, owner: str, handle: str | None = None) -> int:
        """Different readable blocks that an owner holds, or one handle of it."""
        return self._holders.num_held(owner, handle)

    def is_held_by(self, owner: str, key: BlockKey) -> bool:
        slot = self._tree.slot_of(key)
        return slot is not None and self._holders.owner_holds(owner, slot)

    def holds(self, owner: str, handle: str, key: BlockKey) -> bool:
        """Whether the handle holds the readable block of this key already."""
        slot = self._tree.slot_of(key)
        return slot is not None and self._holders.holds(owner, handle, slot)

    def drop(self, owner: str, handle: str, slots: Sequence[Slot]) -> None:
        """End holds of a handle early."""
        self._after_drop(self._holders.drop(owner, handle, slots))

    def release(self, owner: str, handle: str, *, is_use: bool = True) -> int:
        """End all under a handle, its slots and holds; how many. Not `is_use`: as in `lease`."""
        holding = self._holders.pop(owner, handle)
        self._slots.free(holding.own)
        if is_use:
            self._policy.ended(self._tree.in_order(holding.held))
        self._after_drop(holding.held)
        return len(holding.own) + len(holding.held)

    def release_owner(self, owner: str) -> int:
        """End everything of an attachment that is gone."""
        return sum(self.release(owner, handle) for handle in self._holders.handles(owner))

    def is_readable(self, key: BlockKey) -> bool:
        return self._tree.slot_of(key) is not None

    def readable(self, key: BlockKey) -> HeldBlock | None:
        """Where a block is now; nobody is promised that it stays."""
        slot = self._tree.slot_of(key)
        return None if slot is None else self._held(slot)

    def num_leading(self, keys: Sequence[BlockKey]) -> int:
        """How many of `keys`, from the first, are readable; touches nothing."""
        return len(self._tree.leading(keys))

    def depth(self, chain: Sequence[BlockKey]) -> int:
        """The same of a chain, in fewer looks."""
        return self._tree.depth(chain)

    def place(self, key: BlockKey) -> BlockPlace | None:
        """Where a readable block is in its chain."""
        slot = self._tree.slot_of(key)
        return None if slot is None else self._tree.place_at(slot)

    def path(self, key: BlockKey) -> list[BlockKey]:
        """The chain of a readable block, its own key last; empty when it is not here."""
        slot = self._tree.slot_of(key)
        return [] if slot is None else self._tree.path(slot)

    def quarantine(self, key: BlockKey) -> int:
        """Take a doubtful block and all below it out of the readable set; returns how many.

        The doubtful slot gets another generation, so whoever reads it in place finds out.
        """
        slot = self._tree.slot_of(key)
        num_removed = len(self.drop_blocks(key))
        if slot is not None:
            self._slots.bump(slot)
        self._quarantined_total += num_removed
        return num_removed

    def drop_blocks(self, key: BlockKey) -> list[Slot]:
        """Take a block and all below it out of the readable set; holders keep what they hold."""
        slot = self._tree.slot_of(key)
        removed = [] if slot is None else self._tree.subtree(slot)
        if removed:
            self._remove(removed)
        return removed

    def restore(self, blocks: Sequence[tuple[Slot, int, BlockPlace]]) -> int:
        """(slot, checksum, place) that a store kept; returns how many hang on a first block."""
        restored: list[Slot] = []
        for slot, checksum, place in sorted(blocks, key=lambda block: block[2].index):
            is_rooted = place.parent is None or self.is_readable(place.parent)
            is_free = self._slots.is_in(slot, SlotState.FREE)
            if not is_rooted or not is_free or self.is_readable(place.key):
                continue
            self._slots.occupy(slot, checksum)
            self._tree.add([slot], [place.key], place.parent, place.index)
            self._policy.stored(slot, place.key)
            self.log.stored([place])
            restored.append(slot)
        self._slots.forget_occupied()
        self._unpin(restored)
        return len(restored)

    def next_victims(self, limit: int) -> list[BlockPlace]:
        """The blocks that go first when room is needed, in order; fewer when others are held."""
        return look_ahead(self._tree, self._policy, limit)

    def evict(self, count: int) -> int:
        """Free up to `count` slots ahead of need; returns how many."""
        count = max(0, min(count, self._tree.num_evictable))
        num_gone = self._evict(islice(iter(self._policy.victim, None), count))
        assert num_gone == count, "fewer candidates than were counted"
        return num_gone

    def evict_blocks(self, keys: Sequence[BlockKey]) -> int:
        """Free the slots of these where nobody holds them and nothing is below; how many."""
        slots = (slot for key in keys if (slot := self._tree.slot_of(key)) is not None)
        return self._evict(filter(self._tree.is_candidate, slots))

    def drain_change(self) -> ResidencyChange | None:
        """The next residency event, None when nothing changed since the last."""
        return self.log.drain()

    def inventory(self, cursor: int, max_blocks: int) -> tuple[list[StoredBlocks], int | None]:
        """A page of the readable blocks and the next cursor (a slot), None after the last page.

        Blocks that come or go between two pages are in the events after the first page's `seq`.
        """
        places, next_cursor = self._tree.page(cursor, max_blocks)
        return runs_of(places), next_cursor

    @property
    def counts(self) -> PoolCounts:
        parts = self._slots, self._holders, self._tree
        return counts_of(*parts, self._evictions_total, self._quarantined_total)

    def check_integrity(self) -> None:
        """Raises AssertionError when the parts contradict one another."""
        check_parts(self._slots, self._holders, self._tree)

    def _held(self, slot: Slot) -> HeldBlock:
        return self._all_held([slot])[0]

    def _all_held(self, slots: Sequence[Slot]) -> list[HeldBlock]:
        generations, checksums = self._slots.generations(slots), self._slots.checksums(slots)
        return list(map(HeldBlock, slots, generations, checksums, self._tree.keys_of(slots)))

    def _hold(self, owner: str, handle: str, slots: Collection[Slot]) -> None:
        self._tree.pin(self._holders.hold(owner, handle, slots))

    def _after_drop(self, slots: Collection[Slot]) -> None:
        if self._slots.count(SlotState.DOOMED):
            doomed = [slot for slot in slots if self._slots.is_in(slot, SlotState.DOOMED)]
            slots = {*slots}.difference(doomed)
            self._slots.free([slot for slot in doomed if not self._holders.num_holds(slot)])
        self._unpin(slots)

    def _unpin(self, slots: Collection[Slot]) -> None:
        before = self._tree.num_evictable
        self._tree.unpin(slots)
        if self._tree.num_evictable > before:
            self.on_room()

    def _free_own(self, owner: str, handle: str, slot: Slot) -> None:
        self._holders.take_back(owner, handle, slot)
        self._slots.free([slot])

    def _keep_private(self, item: SealItem) -> SealedItem:
        self._slots.finish(item.slot, SlotState.PRIVATE, item.checksum)
        return SealedItem(HeldBlock(item.slot, item.generation, item.checksum), False)

    def _may_seal(self, owner: str, handle: str, items: list[SealItem]) -> bool:
        slots = [item.slot for item in items]
        own = self._holders.own(owner, handle)
        if len({*slots}) < len(slots) or not own >= {*slots}:
            return False
        if not self._slots.are_in(slots, SlotState.WRITING):
            return False
        return [*self._slots.generations(slots)] == [item.generation for item in items]

    def _make_readable(
        self, owner: str, handle: str, start: int, chain: Sequence[BlockKey], items: list[SealItem]
    ) -> list[SealedItem]:
        """Keyed items up to one whose block is readable already."""
        slots = [item.slot for item in items]
        parent = chain[start - 1] if start else None
        count = self._tree.add(slots, chain[start : start + len(items)], parent, start)
        del slots[count:], items[count:]
        self._slots.seal(slots, [item.checksum for item in items])
        self._holders.keep(owner, handle, slots)
        stored = self._policy.stored
        for index, slot in enumerate(slots, start):
            stored(slot, chain[index])
        self.log.stored(place_of(chain, index) for index in range(start, start + count))
        return [
            SealedItem(HeldBlock(item.slot, item.generation, item.checksum, item.key), True)
            for item in items
        ]

    def _evict(self, slots: Iterable[Slot]) -> int:
        """Each must be a candidate when it is its turn; how many there were."""
        gone = self._take_out(slots)
        self._evictions_total += len(gone)
        self._slots.free(gone)  # nobody holds a candidate
        return len(gone)

    def _remove(self, slots: Sequence[Slot]) -> None:
        """Out of the readable set, children first; a slot is free once nobody holds it."""
        self._take_out(slots)
        held = {slot for slot in slots if self._holders.num_holds(slot)}
        for slot in held:
            self._slots.doom(slot)
        self._slots.free([slot for slot in slots if slot not in held])
        self.on_room()  # what was above them may go, too

    def _take_out(self, slots: Iterable[Slot]) -> list[Slot]:
        """The policy forgets each before it hears of its parent."""
        forget, remove = self._policy.removed, self._tree.remove
        gone: list[Slot] = []
        blocks: list[tuple[BlockKey, BlockKey]] = []
        for slot in slots:
            forget(slot)
            blocks.append(remove(slot))
            gone.append(slot)
        self.log.removed(blocks)
        return gone
