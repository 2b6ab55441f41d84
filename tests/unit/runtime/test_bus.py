"""Requests of the bus and cancellation, without a server."""

import asyncio
import logging

import pytest

from shared.messages.common import Empty, Ok
from shared.messages.envelope import encode
from shared.runtime.bus import Bus
from shared.runtime.errors import BusTimeout, NoResponder
from shared.runtime.nats_client import DirectClient


class Client(DirectClient):
    """Sends nothing; the test says when the last question is answered."""

    def __init__(self) -> None:
        super().__init__()
        self._answer_prefix = "_INBOX.test."
        self._replies: list[str] = []

    def send(self, subject: str, payload: bytes, reply: str = "") -> bool:
        self._replies.append(reply)
        return True

    def answer(self, payload: bytes = encode(Ok()), headers: bytes = b"") -> None:
        self._on_answer(self._replies[-1], "", payload, headers)

    @property
    def num_waiting(self) -> int:
        return len(self._answers)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def bus(client: Client) -> Bus:
    return Bus(client, logging.getLogger("test"))


async def test_a_cancellation_that_comes_with_the_answer_is_not_lost(
    bus: Bus, client: Client
) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bus.request("s", Empty(), Ok, timeout_s=5))
        await asyncio.sleep(0)
        client.answer()
        task.cancel()
    assert task.cancelled()
    assert client.num_waiting == 0


async def test_a_task_that_was_cancelled_before_can_still_ask_while_it_cleans_up(
    bus: Bus, client: Client
) -> None:
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
        await asyncio.sleep(0)
        client.answer()
    assert answers == [Ok()]


async def test_a_time_out_around_a_request_stays_a_time_out(bus: Bus, client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bus.request("s", Empty(), Ok, timeout_s=5)
    assert client.num_waiting == 0


async def test_each_answer_goes_to_its_question_and_a_late_or_second_one_to_nobody(
    bus: Bus, client: Client
) -> None:
    with pytest.raises(BusTimeout):
        await bus.request("s", Empty(), Ok, timeout_s=0.001)
    client.answer()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(bus.request("s", Empty(), Ok, timeout_s=5))
        await asyncio.sleep(0)
        second = group.create_task(bus.request("s", Empty(), Ok, timeout_s=5))
        await asyncio.sleep(0)
        client.answer()
        client.answer()
        await asyncio.wait({second})
        assert not first.done()
        first.cancel()
    assert second.result() == Ok()
    assert client.num_waiting == 0


async def test_that_nobody_listens_is_not_an_answer(bus: Bus, client: Client) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_failure(bus))
        await asyncio.sleep(0)
        client.answer(b"", b"NATS/1.0 503\r\n\r\n")
    assert isinstance(task.result(), NoResponder)


async def _failure(bus: Bus) -> Exception | None:
    try:
        await bus.request("s", Empty(), Ok, timeout_s=5)
    except NoResponder as error:
        return error
    return None
