"""One open page: the events that wait for it, and their end when it does not read them."""

import asyncio
from collections import deque

MAX_WAITING = 8


class Viewer:
    """Events are shared with other viewers: bytes that nobody changes."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self.is_ended = False
        self.was_slow = False

    def give(self, event: bytes) -> None:
        """Once too many wait the viewer is dropped: it may come back and start afresh."""
        if self.is_ended:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.was_slow = True
            self.end()
            return
        self._waiting.append(event)
        self._changed.set()

    def end(self) -> None:
        self.is_ended = True
        self._waiting.clear()
        self._changed.set()

    async def next(self) -> bytes | None:
        """The next event; None at the end."""
        while not self._waiting and not self.is_ended:
            self._changed.clear()
            await self._changed.wait()
        return None if self.is_ended else self._waiting.popleft()
