"""PURE: which prompt computes its next chunk, and when a new one would start.

First come, first served among those whose cached prefix is loaded. The choice is made anew for
each chunk, so that another discipline can take its place.
"""

from dataclasses import dataclass

LEARN_SHARE = 0.2
"""Weight of the newest chunk in the learnt speed."""


@dataclass(slots=True)
class Entry:
    """A prompt that waits or is in the middle of its chunks."""

    handle: str
    tokens_left: int
    is_loaded: bool = False
    has_started: bool = False


class PrefillQueue:
    """Owns the order of prompts and the learnt speed of the instance."""

    def __init__(self, tokens_per_s: float) -> None:
        if tokens_per_s <= 0:
            raise ValueError(f"tokens_per_s: must be more than 0, is {tokens_per_s}")
        self._entries: dict[str, Entry] = {}
        self._tokens_per_s = tokens_per_s

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

    def add(self, handle: str, num_tokens: int) -> None:
        if handle in self._entries:
            raise ValueError(f"{handle} is queued already")
        self._entries[handle] = Entry(handle, num_tokens)

    def loaded(self, handle: str, tokens_left: int) -> None:
        """Its prefix is here (or will never be): so many tokens are to be computed."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.tokens_left = tokens_left
            entry.is_loaded = True

    def next(self) -> str | None:
        """Whose chunk is computed next: one that has started, else the oldest that is loaded."""
        oldest: str | None = None
        for entry in self._entries.values():
            if entry.has_started:  # at most one: it keeps its turn until its last chunk
                return entry.handle
            if entry.is_loaded and oldest is None:
                oldest = entry.handle
        return oldest

    def started(self, handle: str) -> None:
        """It took its first turn: the others wait until it is done."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.has_started = True

    def computed(self, handle: str, num_tokens: int, seconds: float) -> None:
        """A chunk is done; learns the speed from it."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.tokens_left = max(entry.tokens_left - num_tokens, 0)
        if seconds > 0:
            speed = num_tokens / seconds
            self._tokens_per_s += LEARN_SHARE * (speed - self._tokens_per_s)

    def remove(self, handle: str) -> None:
        self._entries.pop(handle, None)

    def expected_start_s(self, reserved_tokens: int) -> float:
        """Until a prompt that comes now starts, behind the queue and what is reserved."""
        return (self.queued_tokens + reserved_tokens) / self._tokens_per_s
