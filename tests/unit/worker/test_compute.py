"""The compute thread: order, and what cancelling means."""

import asyncio
import threading

import pytest

from shared.worker.compute import ComputeThread


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
