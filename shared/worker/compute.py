"""The one thread in which a process computes; calls run in the order they were made."""

import asyncio
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SWITCH_S = 0.0002
"""Python lets a thread wait up to 5 ms for one that has something to do, as the loop always has
when a call is made and computing is to begin."""


class ComputeThread:
    """Keeps torch off the event loop. A call that has begun is never abandoned.

    Not an executor: its futures lock, notify and are chained to those of the loop. Here the thread
    wakes the loop once, and that wakes whoever waits.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """The result of `function`. When cancelled, returns only after the thread has left it.

        So whoever is cancelled may free the slots that the call was reading or writing.
        """
        if self._is_closed:
            raise RuntimeError("the compute thread takes no more calls")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
            sys.setswitchinterval(SWITCH_S)
            self._thread.start()
        call = _Call(function, asyncio.get_running_loop())
        self._calls.put(call)
        try:
            return await call.outcome
        except asyncio.CancelledError:
            if not call.drop():
                await call.left()
            raise

    def close(self) -> None:
        """Take no more calls, drop those that wait; does not wait for the one that runs."""
        self._is_closed = True
        while (call := self._next_waiting()) is not None:
            call.outcome.cancel()
        self._calls.put(None)

    def _next_waiting(self) -> "_Call[Any] | None":
        try:
            return self._calls.get_nowait()
        except Empty:
            return None

    def _work(self) -> None:
        """The thread."""
        while (call := self._calls.get()) is not None:
            call.work()
            del call  # what it computed with, a pool perhaps, would live until the next one


class _Call(Generic[T]):
    """Made on the loop, done in the thread, heard of on the loop."""

    _value: T

    def __init__(self, function: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._loop = loop
        self._is_settled = threading.Lock()
        """Taken once: by the thread, which does it, or by the loop, which drops it."""
        self._error: BaseException | None = None
        self._has_left = False
        self._leaving: asyncio.Future[None] | None = None
        self.outcome: asyncio.Future[T] = loop.create_future()

    def work(self) -> None:
        """In the thread."""
        if not self._is_settled.acquire(blocking=False):
            return
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001  (raised where the outcome is awaited)
            self._error = error
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:
            return  # the loop has ended, and with it whoever waited

    def drop(self) -> bool:
        """Never do it; False: it has begun."""
        return self._is_settled.acquire(blocking=False)

    async def left(self) -> None:
        """Until the thread has left it, however often the caller is cancelled."""
        while not self._has_left:
            self._leaving = self._loop.create_future()
            try:
                await self._leaving
            except asyncio.CancelledError:
                continue  # `run` raises the first one once the thread is out

    def _end(self) -> None:
        self._has_left = True
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
        if self.outcome.done():
            return
        if self._error is not None:
            self.outcome.set_exception(self._error)
        else:
            self.outcome.set_result(self._value)
