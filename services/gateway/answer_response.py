"""Writes an answer as HTTP, whole or as a stream of events, and notices when the client leaves."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError, to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from services.gateway.answer import Piece
from services.gateway.choices import Choices
from services.gateway.errors import ApiError
from services.gateway.generator import Generator
from services.gateway.openai_responses import ResponseBuilder
from services.gateway.request_span import RequestSpan
from shared.runtime.clock import monotonic_s

T = TypeVar("T")
SEND_GRACE_S = 30.0
"""After a request's deadline, for a client that reads slowly."""


class AnswerResponse(Response):
    """An ASGI app that owns the answer from here to its end.

    The status is decided by the first thing that happens: an error before the first token is a
    plain HTTP error even for a stream.
    """

    def __init__(
        self,
        generator: Generator,
        choices: Choices,
        builder: ResponseBuilder,
        span: RequestSpan,
        *,
        is_stream: bool,
    ) -> None:
        self._generator = generator
        self._span = span
        self._choices = choices
        self._builder = builder
        self._is_stream = is_stream
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left_s = max(0.0, self._choices.first.job.deadline_s - monotonic_s()) + SEND_GRACE_S
        write = self._write_stream(send) if self._is_stream else self._write_whole(send, scope)
        try:
            async with asyncio.timeout(left_s):
                await unless_client_leaves(receive, write)
        except TimeoutError:
            return
        finally:
            self._generator.finish(self._choices)
            self._span.ended(self._choices)

    async def _write_whole(self, send: Send, scope: Scope) -> None:
        try:
            pieces = [piece async for piece in self._choices.pieces()]
            response: Response = await self._made(lambda: JSONResponse(self._builder.whole(pieces)))
        except ApiError as error:
            response = error_response(error)
        await response(scope, _no_more, send)

    async def _write_stream(self, send: Send) -> None:
        is_started = False
        # Written while nothing has come yet: the first token does not wait for it.
        opening = b"".join(map(_event, self._builder.opening_chunks()))
        try:
            async for index, piece in self._choices.pieces():
                events = await self._made(partial(self._events, index, piece))
                if not is_started:
                    await self._start_stream(send)
                    events = opening + events
                is_started = True
                if events:
                    await _send_body(send, events)
            last = self._builder.last_chunk()
            if last is not None:
                await _send_body(send, _event(last))
        except ApiError as error:
            if not is_started:
                await error_response(error)({"type": "http"}, _no_more, send)
                return
            await _send_body(send, _event(error.body))
        await _send_body(send, b"data: [DONE]\n\n", is_last=True)

    def _events(self, index: int, piece: Piece) -> bytes:
        return b"".join(_event(chunk) for chunk in self._builder.chunks(index, piece))

    async def _made(self, make: Callable[[], T]) -> T:
        """A prompt's log probabilities take long enough to write to hold up others' tokens."""
        return await run_in_threadpool(make) if self._builder.tells_prompt else make()

    async def _start_stream(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                ],
            }
        )


def error_response(error: ApiError) -> Response:
    """In ASCII: what a client sent and is told back may be half a character."""
    return Response(
        json.dumps(error.body),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def _event(content: dict[str, Any]) -> bytes:
    try:
        written = to_json(content)
    except PydanticSerializationError:  # half a character, which no UTF-8 can hold
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        written = text.encode("utf-8", "replace")
    return b"data: " + written + b"\n\n"


async def _send_body(send: Send, body: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def _no_more() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`; stop it when the client closes the connection."""
    try:
        async with asyncio.timeout(None) as limit:
            leaving = asyncio.ensure_future(_until_gone(receive))
            leaving.add_done_callback(
                lambda _: None if leaving.cancelled() else limit.reschedule(0)
            )
            try:
                await work
            finally:
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
    except TimeoutError:
        if not limit.expired():
            raise


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
