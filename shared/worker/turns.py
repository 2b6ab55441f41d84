"""Hands the compute thread to one prompt at a time, in the order that the queue decides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.runtime.clock import monotonic_s
from shared.worker.prefill_queue import PrefillQueue


class Turns:
    """Owns who may compute now. Whoever waits sleeps."""

    def __init__(self, queue: PrefillQueue) -> None:
        self._queue = queue
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._is_taken = False
        self._free_s = monotonic_s()

    def changed(self) -> None:
        """The queue changed: somebody else may be next."""
        if self._is_taken or not self._waiting:
            return
        handle = self._queue.next(monotonic_s())
        future = self._waiting.pop(handle, None) if handle is not None else None
        if future is not None and not future.done():
            self._is_taken = True
            future.set_result(self._free_s)

    @asynccontextmanager
    async def turn(self, handle: str) -> AsyncIterator[float]:
        """Waits until it is this prompt's turn and keeps it inside the block.

        Gives the time since when nobody else computed: waiting after it was not for others.
        """
        free_s = await self._take(handle)
        try:
            yield free_s
        finally:
            self._give_back()

    async def _take(self, handle: str) -> float:
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = future
        self.changed()
        try:
            return await future
        except asyncio.CancelledError:
            self._waiting.pop(handle, None)
            if future.done() and not future.cancelled():
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._is_taken = False
        self._free_s = monotonic_s()
        self.changed()
