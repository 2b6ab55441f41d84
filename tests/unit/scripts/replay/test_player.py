"""The player against a server that says what a gateway says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scripts.replay.plan import PlanSettings, make_plan
from scripts.replay.player import Player
from shared.simulator.trace import TraceRequest

REQUESTS = [TraceRequest(0.0, 60, 3, (1,)), TraceRequest(0.05, 90, 3, (1,))]
BILL = {"cached_from": "local", "cached_tokens": 16, "bill": {}}


class Gateway:
    """Streams two pieces, the second of two tokens; refuses prompts of more than 80 tokens."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        if len(body["prompt"]) > 80:
            content = json.dumps({"error": {"message": "TTFT would be 9 s"}}).encode()
            writer.write(b"HTTP/1.1 429 Too Many\r\ncontent-length: %d\r\n\r\n" % len(content))
            writer.write(content)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
            events: list[object] = [
                {"choices": [{"token_ids": [5]}]},
                {"choices": [{"token_ids": [6, 7]}], "moonpool": BILL},
            ]
            for event in events:
                writer.write(f"data: {json.dumps(event)}\n\n".encode())
                await writer.drain()
            writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    served = Gateway()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield served, f"http://127.0.0.1:{port}"


async def test_tokens_bills_and_refusals_are_noted() -> None:
    plan = make_plan(REQUESTS, PlanSettings())
    async with gateway() as (served, url):
        player = Player(url, "m", "key", {"prefill": "p1"}, "moonpool")
        done: list[int] = []
        run = await player.play(plan.requests, lambda: done.append(1))
    first, second = run.played
    assert first.is_served
    assert len(first.token_times_s) == 3
    assert first.bill == BILL
    assert (second.status, second.error, second.is_served) == (429, "TTFT would be 9 s", False)
    assert len(done) == 2
    assert served.bodies[0]["placement"] == {"prefill": "p1"}
    assert served.bodies[0]["policy"] == "moonpool"
    assert served.bodies[0]["prompt"] == plan.requests[0].prompt()
    assert run.span_s >= 0.05


async def test_a_server_that_is_not_there_is_a_failure_of_each_request() -> None:
    async with gateway() as (_, url):
        pass
    run = await Player(url, "m").play(make_plan(REQUESTS, PlanSettings()).requests)
    assert all(one.error and not one.is_served for one in run.played)
