"""Awaiting something that may be given up for an event."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None when the event came first (work is cancelled)."""
    work_task = asyncio.ensure_future(work)
    event_task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({work_task, event_task}, return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            return work_task.result()
        return None
    finally:
        for task in (work_task, event_task):
            task.cancel()
        await asyncio.gather(work_task, event_task, return_exceptions=True)
