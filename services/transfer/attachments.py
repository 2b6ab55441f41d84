"""The workers attached to this node: who they are and which of their calls run now.

Never frees slots itself: `end` says when nothing of an attachment runs any more.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shared.messages.pool import Attach


@dataclass(slots=True, eq=False)
class Attachment:
    """One attached socket."""

    owner: str
    """Under this name the pool keeps what it holds; new for each socket."""
    worker: Attach
    cap: int
    """Most slots it may own, and most blocks it may hold."""
    running: dict[str, set[asyncio.Task[Any]]] = field(default_factory=dict)
    """Calls by handle that can be stopped."""

    def begin(self, handle: str, task: asyncio.Task[Any]) -> None:
        self.running.setdefault(handle, set()).add(task)

    def finish(self, handle: str, task: asyncio.Task[Any]) -> None:
        tasks = self.running.get(handle)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self.running[handle]

    async def stop_handle(self, handle: str) -> None:
        """Stop the handle's calls and wait until their threads have left the slots."""
        while running := self.running.get(handle):  # one may begin while we wait
            await _stopped(running)

    async def stop_all(self) -> None:
        while running := {task for tasks in self.running.values() for task in tasks}:
            await _stopped(running)


def default_cap(worker: Attach, num_slots: int) -> int:
    """Half of the pool, but always room for one longest context and half of another: so much a
    worker that is stopped can cost its node."""
    return min(num_slots, max(-(-3 * worker.context_blocks // 2), num_slots // 2))


class Attachments:
    """All attachments by owner name."""

    def __init__(self) -> None:
        self._attached: dict[str, Attachment] = {}
        self._count = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, worker: Attach, num_slots: int) -> Attachment:
        """To a pool of `num_slots`."""
        self._count += 1
        owner = f"{worker.instance}:{worker.incarnation}:{self._count}"
        attachment = Attachment(owner, worker, worker.max_slots or default_cap(worker, num_slots))
        self._attached[attachment.owner] = attachment
        self._empty.clear()
        return attachment

    def remove(self, attachment: Attachment) -> None:
        self._attached.pop(attachment.owner, None)
        if not self._attached:
            self._empty.set()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def by_role(self) -> dict[str, int]:
        return dict(Counter(each.worker.role for each in self._attached.values()))

    def names(self) -> list[str]:
        return sorted(each.worker.instance for each in self._attached.values())

    async def wait_calls(self) -> None:
        """Until the calls that run now have ended, well or not."""
        running = {
            task
            for each in self._attached.values()
            for tasks in each.running.values()
            for task in tasks
        }
        if running:
            await asyncio.wait(running)


async def _stopped(tasks: set[asyncio.Task[Any]]) -> None:
    waiting = set(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
