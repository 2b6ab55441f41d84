"""The compute thread: order, and what cancelling means."""

import asyncio
import threading
import weakref

import pytest

from shared.worker.compute import ComputeThread
from tests.support.deadline import until


async def test_a_cancelled_call_returns_only_after_the_thread_has_left_it() -> None:
    compute = ComputeThread()
    entered, leave = threading.Event(), threading.Event()
    left = False

    def work() -> None:
        nonlocal left
        entered.set()
        leave.wait(10)
        left = True

    async with asyncio.TaskGroup() as group:
        task = group.create_task(compute.run(work))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        leave.set()
    assert task.cancelled()
    assert left
    compute.close()


async def test_a_call_that_has_not_begun_is_dropped_when_cancelled() -> None:
    compute = ComputeThread()
    leave = threading.Event()
    calls: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(compute.run(lambda: leave.wait(10)))
        await asyncio.sleep(0)
        waiting = group.create_task(compute.run(lambda: calls.append("dropped")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        leave.set()
    assert await compute.run(lambda: calls.append("ran")) is None
    assert calls == ["ran"]
    compute.close()


async def test_an_error_in_the_thread_is_raised_to_the_caller() -> None:
    compute = ComputeThread()
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: 1 // 0)
    compute.close()


async def test_a_call_that_is_cancelled_again_and_again_is_still_waited_for() -> None:
    compute = ComputeThread()
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        leave.wait(10)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(compute.run(work))
        await asyncio.to_thread(entered.wait, 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        leave.set()
    assert task.cancelled()
    assert await compute.run(lambda: 7) == 7
    compute.close()


async def test_what_fails_after_it_was_cancelled_is_no_error_of_anybody() -> None:
    compute = ComputeThread()
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        leave.wait(10)
        raise ZeroDivisionError

    async with asyncio.TaskGroup() as group:
        task = group.create_task(compute.run(work))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        leave.set()
    assert task.cancelled()
    compute.close()


async def test_closing_drops_what_waits_and_not_what_runs() -> None:
    compute = ComputeThread()
    entered, leave = threading.Event(), threading.Event()
    calls: list[str] = []

    def work() -> str:
        entered.set()
        leave.wait(10)
        return "done"

    async with asyncio.TaskGroup() as group:
        running = group.create_task(compute.run(work))
        await asyncio.to_thread(entered.wait, 10)
        waiting = group.create_task(compute.run(lambda: calls.append("dropped")))
        await asyncio.sleep(0)
        compute.close()
        leave.set()
    assert running.result() == "done"
    assert waiting.cancelled()
    assert calls == []
    with pytest.raises(RuntimeError, match="takes no more calls"):
        await compute.run(lambda: None)


async def test_nothing_of_a_call_outlives_it() -> None:
    """It may see a pool's memory, which the next one must be able to take the place of."""

    class Pool:
        pass

    compute, pool = ComputeThread(), Pool()
    seen = weakref.ref(pool)
    await compute.run(lambda held=pool: None)  # type: ignore[misc]
    del pool
    await until(lambda: seen() is None, what="nobody holds it")
    compute.close()
