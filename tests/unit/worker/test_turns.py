"""Turns: one prompt computes at a time, in the order of the queue."""

import asyncio

from shared.worker.prefill_queue import PrefillQueue
from shared.worker.turns import Turns


def loaded_queue(*handles: str) -> PrefillQueue:
    queue = PrefillQueue(1.0)
    for number, handle in enumerate(handles):
        queue.add(handle, 1, 1, float(number))
        queue.loaded(handle, 1)
    return queue


async def compute(turns: Turns, queue: PrefillQueue, handle: str, order: list[str]) -> None:
    async with turns.turn(handle):
        queue.started(handle)
        order.append(handle)
        await asyncio.sleep(0)
        order.append(handle)
    queue.remove(handle)
    turns.changed()


async def test_prompts_compute_one_after_the_other_whoever_asks_first() -> None:
    queue = loaded_queue("a", "b", "c")
    turns = Turns(queue)
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        for handle in ("c", "b", "a"):
            group.create_task(compute(turns, queue, handle, order))
    assert order == ["a", "a", "b", "b", "c", "c"]


async def test_a_prompt_cancelled_as_its_turn_comes_passes_it_on() -> None:
    queue = loaded_queue("x", "a", "b")
    turns = Turns(queue)
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        async with turns.turn("x"):
            first = group.create_task(compute(turns, queue, "a", order))
            second = group.create_task(compute(turns, queue, "b", order))
            await asyncio.sleep(0)
            queue.remove("x")
        first.cancel()  # it has the turn already, and is not awake yet
        await asyncio.sleep(0)
        assert first.cancelled()
        queue.remove("a")
        turns.changed()
    assert second.done()
    assert order == ["b", "b"]
