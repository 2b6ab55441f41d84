"""What an eviction policy is told and asked. A policy only ranks: the pool says what may go."""

from collections.abc import Sequence
from typing import Protocol

from shared.kv.ids import BlockKey, Slot


class EvictionPolicy(Protocol):
    """Ranks the candidates: sealed blocks that nobody holds and that have no children here."""

    def stored(self, slot: Slot, key: BlockKey) -> None:
        """A block became readable in this slot."""

    def used(self, slot: Slot) -> None:
        """A block was leased or stored again."""

    def ended(self, slots: Sequence[Slot]) -> None:
        """A request that held these blocks, the root first, is over; before they are offered."""

    def removed(self, slot: Slot) -> None:
        """The block in this slot is gone."""

    def offer(self, slot: Slot) -> None:
        """The block may be evicted from now on."""

    def withdraw(self, slot: Slot) -> None:
        """The block may not be evicted for now; it may never have been offered."""

    def victim(self) -> Slot | None:
        """The candidate to evict first, None without candidates. Changes nothing."""
