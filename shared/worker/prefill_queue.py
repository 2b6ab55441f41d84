"""PURE: which prompt computes its next chunk, and when a new one would start.

The choice is made anew at every chunk. `fair`: the prompt that would be done first if each had had
the instance for itself since it came (its arrival plus the time for what of it is not cached), so
short prompts pass long ones, but none is passed by a prompt that comes later than that. `fifo`: in
the order of arrival, each until its last chunk.

A prompt takes all its slots at once with its first chunk. The one that could not get them is the
next to take any; those that have theirs go on meanwhile and give them back when they are done.
"""

from dataclasses import dataclass
from typing import Literal

LEARN_SHARE = 0.2
"""Weight of the newest chunk in the learnt speed."""
Discipline = Literal["fair", "fifo"]


@dataclass(slots=True)
class Entry:
    """A prompt that waits or is in the middle of its chunks."""

    handle: str
    tokens_left: int
    arrived_s: float
    uncached_tokens: int
    """All that is to be computed, whatever of it is done."""
    is_loaded: bool = False
    has_started: bool = False


class PrefillQueue:
    """Owns the order of prompts and the learnt speed of the instance."""

    def __init__(self, tokens_per_s: float, discipline: Discipline = "fair") -> None:
        if tokens_per_s <= 0:
            raise ValueError(f"tokens_per_s: must be more than 0, is {tokens_per_s}")
        self._entries: dict[str, Entry] = {}  # in order of age
        self._tokens_per_s = tokens_per_s
        self._discipline = discipline
        self._slot_waiter: str | None = None
        self._may_retry = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: str) -> bool:
        return handle in self._entries

    @property
    def queued_tokens(self) -> int:
        return sum(entry.tokens_left for entry in self._entries.values())

    @property
    def tokens_per_s(self) -> float:
        return self._tokens_per_s

    def add(self, handle: str, num_tokens: int, now_s: float) -> None:
        if handle in self._entries:
            raise ValueError(f"{handle} is queued already")
        self._entries[handle] = Entry(handle, num_tokens, now_s, num_tokens)

    def loaded(self, handle: str, tokens_left: int) -> None:
        """Its prefix is here (or will never be): so many tokens are to be computed."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.tokens_left = entry.uncached_tokens = tokens_left
            entry.is_loaded = True

    def next(self) -> str | None:
        """Whose chunk is computed next."""
        waiter = self._slot_waiter
        if waiter is not None and (self._may_retry or not self._has_other_started(waiter)):
            return waiter
        ready = [
            entry
            for entry in self._entries.values()
            if entry.has_started or (entry.is_loaded and waiter is None)
        ]
        if not ready:
            return None
        if self._discipline == "fifo":
            return next((entry for entry in ready if entry.has_started), ready[0]).handle
        return min(ready, key=self._done_alone_s).handle

    def started(self, handle: str) -> None:
        """It has its slots and computes from now on."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.has_started = True
        if self._slot_waiter == handle:
            self._slot_waiter = None

    def must_yield(self, handle: str) -> bool:
        """Waiting for slots in its turn would keep those waiting who hold them."""
        return self._has_other_started(handle)

    def lacks_slots(self, handle: str) -> None:
        """It got none: the next turns are for those that have theirs, no other prompt starts."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.has_started = False
            self._slot_waiter = handle
            self._may_retry = False

    def computed(self, handle: str, num_tokens: int, seconds: float) -> None:
        """A chunk is done; learns the speed from it."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.tokens_left = max(entry.tokens_left - num_tokens, 0)
        self._may_retry = True
        if seconds > 0:
            speed = num_tokens / seconds
            self._tokens_per_s += LEARN_SHARE * (speed - self._tokens_per_s)

    def remove(self, handle: str) -> None:
        self._entries.pop(handle, None)
        self._may_retry = True
        if self._slot_waiter == handle:
            self._slot_waiter = None

    def expected_start_s(
        self, reserved_tokens: int, num_tokens: int | None = None, now_s: float = 0.0
    ) -> float:
        """Until a prompt of so many tokens that comes now starts; None: any, however long."""
        ahead = self.queued_tokens
        if self._discipline == "fair" and num_tokens is not None:
            newcomer = Entry("", num_tokens, now_s, num_tokens)
            limit_s = self._done_alone_s(newcomer)
            ahead = sum(
                entry.tokens_left
                for entry in self._entries.values()
                if self._done_alone_s(entry) <= limit_s
            )
        return (ahead + reserved_tokens) / self._tokens_per_s

    def _done_alone_s(self, entry: Entry) -> float:
        return entry.arrived_s + entry.uncached_tokens / self._tokens_per_s

    def _has_other_started(self, handle: str) -> bool:
        return any(entry.has_started and entry.handle != handle for entry in self._entries.values())
