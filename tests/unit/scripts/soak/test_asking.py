"""What a client calls right, wrong, refused, failed, cut or hanging."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from scripts.soak.asking import Kind, Question, Where, ask
from scripts.soak.traffic import Habits, Seen, Traffic

WHERE = Where("http://gateway", "m", "key")
QUESTION = Question((1, 2, 3), (7, 8, 9))


def event(*tokens: int, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"token_ids": list(tokens), "finish_reason": finish}]}


class Body(httpx.AsyncByteStream):
    """Events one by one; `end` is raised after them, or nothing more comes when it is a wait."""

    def __init__(self, events: list[dict[str, Any]], end: Exception | float | None) -> None:
        self._events = events
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for one in self._events:
            yield f"data: {json.dumps(one)}\n\n".encode()
        if isinstance(self._end, Exception):
            raise self._end
        if self._end is not None:
            await asyncio.sleep(self._end)
        yield b"data: [DONE]\n\n"


def client(
    events: list[dict[str, Any]], end: Exception | float | None = None, status: int = 200
) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["prompt"] == [1, 2, 3]
        return httpx.Response(status, stream=Body(events, end))

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


LOST = httpx.RemoteProtocolError("peer closed connection")


@pytest.mark.parametrize(
    ("events", "end", "status", "kind"),
    [
        ([event(7), event(8, 9, finish="length")], None, 200, "right"),
        ([event(7), event(8, finish="length")], None, 200, "wrong"),
        ([event(7), event(8, 4, finish="length")], None, 200, "wrong"),
        ([event(7), event(8)], None, 200, "cut"),
        ([event(7)], LOST, 200, "cut"),
        ([event(5)], LOST, 200, "wrong"),
        ([event(7), {"error": {"message": "no"}}], None, 200, "failed"),
        ([{"error": {"message": "no"}}], None, 503, "refused"),
        ([event(7)], 5.0, 200, "left"),
        ([event(6)], 5.0, 200, "wrong"),
    ],
)
async def test_an_answer_is_judged(
    events: list[dict[str, Any]], end: Exception | float | None, status: int, kind: Kind
) -> None:
    async with client(events, end, status) as http:
        outcome = await ask(http, WHERE, QUESTION, {}, patience_s=0.2)
    assert outcome.kind == kind, outcome
    assert outcome.is_good is (kind in ("right", "left"))


async def test_users_are_served_once_each_had_a_right_answer_asked_later() -> None:
    seen = Seen(last_right_s=[float("-inf")] * 2)
    async with client([event(7, 8, 9, finish="length")]) as http:
        first = await ask(http, WHERE, QUESTION, {})
        seen.note(0, first)
        assert not seen.all_are_served(first.asked_s - 1)
        seen.note(1, await ask(http, WHERE, QUESTION, {}))
    assert seen.all_are_served(first.asked_s - 1)
    assert not seen.all_are_served(first.asked_s)
    assert seen.num_errors == 0


async def test_who_finds_nobody_tries_the_other_gateway() -> None:
    wheres = [Where("http://127.0.0.1:9", "m", "k"), Where("http://127.0.0.1:10", "m", "k")]
    traffic, over = Traffic(wheres, [QUESTION], 1, Habits(), seed=1), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.run(over))
        while traffic.seen.num_errors < 3:  # noqa: ASYNC110  (users tell nobody)
            await asyncio.sleep(0.01)
        over.set()
    assert set(traffic.seen.counts) == {"cut"}
