"""Tasks of a service: every one has an owner, a name and an end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from shared.runtime.clock import monotonic_s

T = TypeVar("T")
CANCEL_AGAIN_S = 0.25


class Tasks:
    """Starts tasks in the service's TaskGroup and cancels them when the service stops."""

    def __init__(self, group: asyncio.TaskGroup, log: logging.Logger) -> None:
        self._group = group
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()
        self._nested: list[Tasks] = []

    def nested(self) -> "Tasks":
        """Tasks of a part that may end before the service does, and ends with it at the latest."""
        inner = Tasks(self._group, self._log)
        self._nested.append(inner)
        return inner

    def start_soon(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """A task the service cannot live without: an exception in it ends the service."""
        task = self._group.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def start_contained(
        self, coroutine: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """A task of one request: an exception in it is logged and ends nothing else."""
        task = self.start_soon(self._contain(coroutine, name), name=name)
        # One that is cancelled before its first step never comes to it.
        task.add_done_callback(lambda _task: coroutine.close())
        return task

    async def _contain(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await coroutine
        except Exception:  # the boundary between one request and the service
            self._log.exception("task %s failed", name)

    async def end(self, timeout_s: float) -> list[str]:
        """Cancel all tasks until they have ended; names those that have not in time.

        Cancelled again and again: some awaits lose a cancellation that comes just as they end.
        """
        deadline_s = monotonic_s() + timeout_s
        while (running := self._all()) and monotonic_s() < deadline_s:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
        return sorted(task.get_name() for task in self._all())

    def _all(self) -> set[asyncio.Task[Any]]:
        return self._running.union(*(inner._all() for inner in self._nested))
