"""Every task ends, even one that loses a cancellation."""

import asyncio
import logging

from shared.runtime.tasks import Tasks

LOG = logging.getLogger("test")


async def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    started = asyncio.Event()

    async def loses_the_first() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        tasks = Tasks(group, LOG)
        tasks.start_soon(loses_the_first(), name="stubborn")
        await started.wait()
        assert await tasks.end(timeout_s=3) == []


async def test_a_task_that_never_ends_is_named() -> None:
    release = asyncio.Event()

    async def refuses() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        tasks = Tasks(group, LOG)
        tasks.start_soon(refuses(), name="refuses")
        await asyncio.sleep(0)
        assert await tasks.end(timeout_s=0.3) == ["refuses"]
        release.set()


async def test_a_contained_task_that_fails_ends_nothing_else() -> None:
    async def fail() -> None:
        raise RuntimeError("planted")

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = Tasks(group, LOG).start_contained(fail(), name="fails")
        await task
