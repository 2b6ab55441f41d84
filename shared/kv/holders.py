"""Who holds which slots: by owner (an attachment or a peer's lease) and handle. Frees nothing."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from shared.kv.hold_counts import HoldCounts
from shared.kv.ids import Slot


@dataclass(slots=True)
class Holding:
    """What one handle of one owner has."""

    own: set[Slot] = field(default_factory=set)
    """WRITING and PRIVATE slots."""
    held: set[Slot] = field(default_factory=set)
    """Sealed slots that must stay."""


class HolderTable:
    """Holdings by owner and handle, and the number of holds of each slot."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, Holding]] = {}
        self._num_own: dict[str, int] = {}
        self._held_by: dict[str, HoldCounts] = {}
        self._holds = HoldCounts()

    @property
    def num_held_slots(self) -> int:
        """Different slots that anybody holds."""
        return len(self._holds)

    def num_own(self, owner: str) -> int:
        """WRITING and PRIVATE slots of an owner."""
        return self._num_own.get(owner, 0)

    def num_held(self, owner: str, handle: str | None = None) -> int:
        """Different slots that an owner holds, under one handle or under all."""
        if handle is not None:
            holding = self._owners.get(owner, {}).get(handle)
            return 0 if holding is None else len(holding.held)
        return len(self._held_by.get(owner, ()))

    def num_allowed(self, owner: str, slots: Sequence[Slot], cap: int) -> int:
        """How many of these, from the first, the owner may hold without holding more than `cap`."""
        held = self._held_by.get(owner, ())
        if len(held) + len(slots) <= cap:
            return len(slots)
        new: set[Slot] = set()
        for number, slot in enumerate(slots):
            if slot in held or slot in new:
                continue
            if len(held) + len(new) >= cap:
                return number
            new.add(slot)
        return len(slots)

    def owner_holds(self, owner: str, slot: Slot) -> bool:
        return slot in self._held_by.get(owner, ())

    def num_holds(self, slot: Slot) -> int:
        return self._holds.count(slot)

    def owns(self, owner: str, handle: str, slot: Slot) -> bool:
        holding = self._owners.get(owner, {}).get(handle)
        return holding is not None and slot in holding.own

    def holds(self, owner: str, handle: str, slot: Slot) -> bool:
        holding = self._owners.get(owner, {}).get(handle)
        return holding is not None and slot in holding.held

    def handles(self, owner: str) -> list[str]:
        return list(self._owners.get(owner, {}))

    def give(self, owner: str, handle: str, slots: Iterable[Slot]) -> None:
        """Slots that the owner may write."""
        holding = self._holding(owner, handle)
        before = len(holding.own)
        holding.own.update(slots)
        self._num_own[owner] = self.num_own(owner) + len(holding.own) - before

    def take_back(self, owner: str, handle: str, slot: Slot) -> None:
        self._owners[owner][handle].own.remove(slot)
        self._num_own[owner] -= 1

    def own(self, owner: str, handle: str) -> AbstractSet[Slot]:
        """Slots that the handle may write or has as private."""
        holding = self._owners.get(owner, {}).get(handle)
        return frozenset() if holding is None else holding.own

    def keep(self, owner: str, handle: str, slots: Collection[Slot]) -> None:
        """Slots of its own, which it holds from now on."""
        if not slots:
            return
        new = {*slots}
        holding = self._owners[owner][handle]
        holding.own -= new
        self._num_own[owner] -= len(new)
        holding.held |= new
        self._held_by.setdefault(owner, HoldCounts()).add(new)
        self._holds.add(new)

    def hold(self, owner: str, handle: str, slots: Collection[Slot]) -> set[Slot]:
        """Those of the slots that this handle did not hold before."""
        holding = self._holding(owner, handle)
        new = {*slots} - holding.held
        holding.held |= new
        self._held_by.setdefault(owner, HoldCounts()).add(new)
        self._holds.add(new)
        return new

    def drop(self, owner: str, handle: str, slots: Iterable[Slot]) -> set[Slot]:
        """End a hold of each; those that the handle did hold."""
        holding = self._owners.get(owner, {}).get(handle)
        if holding is None:
            return set()
        gone = holding.held.intersection(slots)
        holding.held -= gone
        self._held_by[owner].take(gone)
        self._holds.take(gone)
        return gone

    def pop(self, owner: str, handle: str) -> Holding:
        """End everything under a handle; empty when there is nothing."""
        handles = self._owners.get(owner)
        if handles is None:
            return Holding()
        holding = handles.pop(handle, None) or Holding()
        self._num_own[owner] = self.num_own(owner) - len(holding.own)
        if holding.held:
            self._held_by[owner].take(holding.held)
            self._holds.take(holding.held)
        if not handles:
            del self._owners[owner]
            self._num_own.pop(owner, None)
            self._held_by.pop(owner, None)
        return holding

    def all(self) -> Iterator[tuple[str, str, Holding]]:
        for owner, handles in self._owners.items():
            for handle, holding in handles.items():
                yield owner, handle, holding

    def check_integrity(self) -> None:
        """Raises AssertionError when the counts contradict the holdings."""
        holds: Counter[Slot] = Counter()
        for owner, handles in self._owners.items():
            assert sum(len(holding.own) for holding in handles.values()) == self.num_own(owner)
            own_holds: Counter[Slot] = Counter()
            for holding in handles.values():
                assert not holding.own & holding.held
                own_holds.update(holding.held)
            self._held_by.get(owner, HoldCounts()).check_integrity(own_holds)
            holds += own_holds
        self._holds.check_integrity(holds)

    def _holding(self, owner: str, handle: str) -> Holding:
        return self._owners.setdefault(owner, {}).setdefault(handle, Holding())
