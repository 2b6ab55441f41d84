"""The order of one node incarnation's events: nothing is applied twice, late or across a gap.

Pure. Events that come before their turn wait, in a bounded buffer; what cannot be put in order is
made good by an inventory (`begin_recording`, then `restart_at`).
"""

from typing import Generic, TypeVar

E = TypeVar("E")
MAX_KEPT = 8_192
"""Events that wait or are recorded."""
MAX_KEPT_BLOCKS = 1 << 20
"""And blocks in them, together."""


class EventOrder(Generic[E]):
    def __init__(self) -> None:
        self.last_seq = 0
        """Everything up to here is applied."""
        self._said_seq = 0
        self._waiting: dict[int, E] = {}
        self._recorded: dict[int, E] | None = None
        self._num_kept_blocks = 0
        self._has_overflowed = False
        self.duplicates_total = 0

    def accept(self, seq: int, event: E, num_blocks: int = 1) -> list[E]:
        """The events that may be applied now, in order; none when one before is missing."""
        self._said_seq = max(self._said_seq, seq)
        if seq <= self.last_seq or seq in self._waiting:
            self.duplicates_total += 1
            return []
        if self._recorded is not None:
            if self._has_room(self._recorded, num_blocks):
                self._recorded[seq] = event
            else:
                self._has_overflowed = True
        if seq != self.last_seq + 1:
            if self._has_room(self._waiting, num_blocks):
                self._waiting[seq] = event
            return []
        return [event, *self._next_waiting(seq)]

    def _has_room(self, kept: dict[int, E], num_blocks: int) -> bool:
        if len(kept) >= MAX_KEPT or self._num_kept_blocks + num_blocks > MAX_KEPT_BLOCKS:
            return False
        self._num_kept_blocks += num_blocks
        return True

    def _next_waiting(self, seq: int) -> list[E]:
        """Moves `last_seq` from `seq` on over what waited for it."""
        ready = []
        while seq + 1 in self._waiting:
            seq += 1
            ready.append(self._waiting.pop(seq))
        self.last_seq = seq
        if not self._waiting and not self._recorded:
            self._num_kept_blocks = 0
        return ready

    def hear(self, seq: int) -> None:
        """The node says that it has sent everything up to `seq`."""
        self._said_seq = max(self._said_seq, seq)

    @property
    def is_behind(self) -> bool:
        """An event is missing: more were sent than are applied."""
        return self._said_seq > self.last_seq

    def begin_recording(self) -> None:
        """From now on keep events, to be applied again on top of an inventory."""
        self._recorded = {}
        self._has_overflowed = False

    def stop_recording(self) -> None:
        self._recorded = None
        if not self._waiting:
            self._num_kept_blocks = 0

    def restart_at(self, seq: int) -> list[E] | None:
        """The inventory is true at `seq`: the events to apply on top of it, in order.

        None: more came than can be kept; begin again.
        """
        recorded = self._recorded or {}
        self._recorded = None
        if self._has_overflowed:
            return None
        waiting = {**self._waiting, **recorded}
        self._waiting = {at: event for at, event in waiting.items() if at > seq}
        self.last_seq = seq
        return self._next_waiting(seq)
