"""Tokens of one answer to text, ending before the first stop string. Pure."""

from collections.abc import Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Text of a stream of tokens; never half a character."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class TextStream:
    """Holds back text that may become a stop string; a stop string is never given out."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, token_id: int) -> str:
        """Text that is safe to give out now."""
        if self.is_stopped:
            return ""
        self._held += self._detokenizer.push(token_id)
        return self._release(is_last=False)

    def finish(self) -> str:
        """The rest, after the last token."""
        if self.is_stopped:
            return ""
        self._held += self._detokenizer.flush()
        return self._release(is_last=True)

    def _release(self, *, is_last: bool) -> str:
        # The one that ends first wins, so that the way text is cut into tokens changes nothing.
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            text, self._held = self._held[: min(found)[1]], ""
            return text
        keep = 0 if is_last else self._num_may_be_stop()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _num_may_be_stop(self) -> int:
        """Length of the longest end of the held text that a stop string starts with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
