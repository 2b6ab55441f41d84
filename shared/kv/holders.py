"""Who holds which slots: by owner (an attachment or a peer's lease) and handle. Frees nothing."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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

    def __init__(self, num_slots: int) -> None:
        self._owners: dict[str, dict[str, Holding]] = {}
        self._num_own: dict[str, int] = {}
        self._held_by: dict[str, dict[Slot, int]] = {}
        self._holds = array("I", bytes(4 * num_slots))
        self.num_held_slots = 0

    def num_own(self, owner: str) -> int:
        """WRITING and PRIVATE slots of an owner."""
        return self._num_own.get(owner, 0)

    def num_held(self, owner: str, handle: str | None = None) -> int:
        """Different slots that an owner holds, under one handle or under all."""
        if handle is not None:
            holding = self._owners.get(owner, {}).get(handle)
            return 0 if holding is None else len(holding.held)
        return len(self._held_by.get(owner, ()))

    def owner_holds(self, owner: str, slot: Slot) -> bool:
        return slot in self._held_by.get(owner, ())

    def num_holds(self, slot: Slot) -> int:
        return self._holds[slot]

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

    def hold(self, owner: str, handle: str, slot: Slot) -> bool:
        """False when this handle holds the slot already."""
        holding = self._holding(owner, handle)
        if slot in holding.held:
            return False
        holding.held.add(slot)
        held = self._held_by.setdefault(owner, {})
        held[slot] = held.get(slot, 0) + 1
        self._holds[slot] += 1
        self.num_held_slots += self._holds[slot] == 1
        return True

    def drop(self, owner: str, handle: str, slot: Slot) -> None:
        """End one hold."""
        self._owners[owner][handle].held.remove(slot)
        self._count_down(owner, slot)

    def pop(self, owner: str, handle: str) -> Holding:
        """End everything under a handle; empty when there is nothing."""
        handles = self._owners.get(owner)
        if handles is None:
            return Holding()
        holding = handles.pop(handle, None) or Holding()
        self._num_own[owner] = self.num_own(owner) - len(holding.own)
        for slot in holding.held:
            self._count_down(owner, slot)
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
        holds = array("I", bytes(4 * len(self._holds)))
        for owner, handles in self._owners.items():
            assert sum(len(holding.own) for holding in handles.values()) == self.num_own(owner)
            assert self.num_held(owner) == len({s for each in handles.values() for s in each.held})
            for holding in handles.values():
                assert not holding.own & holding.held
                for slot in holding.held:
                    holds[slot] += 1
        assert holds == self._holds
        assert self.num_held_slots == sum(count > 0 for count in holds)

    def _count_down(self, owner: str, slot: Slot) -> None:
        held = self._held_by[owner]
        held[slot] -= 1
        if not held[slot]:
            del held[slot]
        self._holds[slot] -= 1
        self.num_held_slots -= self._holds[slot] == 0

    def _holding(self, owner: str, handle: str) -> Holding:
        return self._owners.setdefault(owner, {}).setdefault(handle, Holding())
