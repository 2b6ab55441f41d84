"""Every task ends, even one that loses a cancellation."""

import asyncio
import inspect
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


async def test_a_contained_task_that_is_cancelled_before_it_starts_leaves_nothing() -> None:
    steps: list[str] = []

    async def work() -> None:
        steps.append("started")

    never = work()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        tasks = Tasks(group, LOG)
        tasks.start_contained(never, name="never starts")
        assert await tasks.end(timeout_s=3) == []
    # One that is not closed is complained of on the console: "was never awaited".
    assert inspect.getcoroutinestate(never) == inspect.CORO_CLOSED
    assert steps == []
