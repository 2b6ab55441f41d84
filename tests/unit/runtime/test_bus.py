"""Requests of the bus and cancellation, with a client that waits as nats-py does."""

import asyncio
import logging
from typing import Any

import pytest
from nats.aio.msg import Msg

from shared.messages.common import Empty, Ok
from shared.messages.envelope import encode
from shared.runtime.bus import Bus


class Client:
    def __init__(self) -> None:
        self.answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def request(self, _subject: str, _data: bytes, *, timeout: float) -> Msg:
        return await asyncio.wait_for(self.answer, timeout)


async def test_a_cancellation_that_comes_with_the_answer_is_not_lost() -> None:
    client: Any = Client()
    bus = Bus(client, logging.getLogger("test"))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bus.request("s", Empty(), Ok, timeout_s=5))
        await asyncio.sleep(0)
        client.answer.set_result(Msg(_client=client, data=encode(Ok())))
        task.cancel()
    assert task.cancelled()


async def test_a_task_that_was_cancelled_before_can_still_ask_while_it_cleans_up() -> None:
    client: Any = Client()
    bus = Bus(client, logging.getLogger("test"))
    client.answer.set_result(Msg(_client=client, data=encode(Ok())))
    answers: list[Ok] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            answers.append(await bus.request("s", Empty(), Ok, timeout_s=5))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
    assert answers == [Ok()]


async def test_a_time_out_around_a_request_stays_a_time_out() -> None:
    client: Any = Client()
    bus = Bus(client, logging.getLogger("test"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bus.request("s", Empty(), Ok, timeout_s=5)
