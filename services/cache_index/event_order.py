"""The order of one node incarnation's events: nothing is applied twice, late or across a gap.

Pure. Events that come before their turn wait, in a bounded buffer; what cannot be put in order is
made good by an inventory (`begin_recording`, then `restart_at`).
"""

from typing import Generic, TypeVar

E = TypeVar("E")
MAX_KEPT = 8_192
"""Events that wait or are recorded."""
MAX_KEPT_BLOCKS = 1 << 20
"""And blocks in them: of those that wait, and of those recorded."""


class _Kept(Generic[E]):
    """Events by sequence, bounded in number and in blocks."""

    def __init__(self) -> None:
        self._events: dict[int, tuple[E, int]] = {}
        self._num_blocks = 0

    def __contains__(self, seq: int) -> bool:
        return seq in self._events

    def add(self, seq: int, event: E, num_blocks: int) -> bool:
        """False: there is no room for it."""
        if seq in self._events:
            return True
        if len(self._events) >= MAX_KEPT or self._num_blocks + num_blocks > MAX_KEPT_BLOCKS:
            return False
        self._events[seq] = (event, num_blocks)
        self._num_blocks += num_blocks
        return True

    def pop(self, seq: int) -> E:
        event, num_blocks = self._events.pop(seq)
        self._num_blocks -= num_blocks
        return event

    def after(self, seq: int, *others: "_Kept[E]") -> "_Kept[E]":
        """Those of all after `seq`; they are kept already, so they have room."""
        joined: _Kept[E] = _Kept()
        for kept in (self, *others):
            joined._events |= {at: one for at, one in kept._events.items() if at > seq}
        joined._num_blocks = sum(num_blocks for _, num_blocks in joined._events.values())
        return joined


class EventOrder(Generic[E]):
    def __init__(self) -> None:
        self.last_seq = 0
        """Everything up to here is applied."""
        self._said_seq = 0
        self._waiting: _Kept[E] = _Kept()
        self._recorded: _Kept[E] | None = None
        self._has_overflowed = False
        self.duplicates_total = 0

    def accept(self, seq: int, event: E, num_blocks: int = 1) -> list[E]:
        """The events that may be applied now, in order; none when one before is missing."""
        self._said_seq = max(self._said_seq, seq)
        if seq <= self.last_seq or seq in self._waiting:
            self.duplicates_total += 1
            return []
        if self._recorded is not None and not self._recorded.add(seq, event, num_blocks):
            self._has_overflowed = True
        if seq != self.last_seq + 1:
            self._waiting.add(seq, event, num_blocks)
            return []
        return [event, *self._next_waiting(seq)]

    def _next_waiting(self, seq: int) -> list[E]:
        """Moves `last_seq` from `seq` on over what waited for it."""
        ready = []
        while seq + 1 in self._waiting:
            seq += 1
            ready.append(self._waiting.pop(seq))
        self.last_seq = seq
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
        self._recorded = _Kept()
        self._has_overflowed = False

    def stop_recording(self) -> None:
        self._recorded = None

    def restart_at(self, seq: int) -> list[E] | None:
        """The inventory is true at `seq`: the events to apply on top of it, in order.

        None: more came than can be kept; begin again.
        """
        recorded: _Kept[E] = self._recorded or _Kept()
        self._recorded = None
        if self._has_overflowed:
            return None
        self._waiting = self._waiting.after(seq, recorded)
        self.last_seq = seq
        return self._next_waiting(seq)
