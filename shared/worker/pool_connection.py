"""Calls over the unix socket of a transfer: ids, answers, time-outs, the end of the connection."""

import asyncio
from pathlib import Path
from typing import Literal, Self, TypeVar

from shared.messages.common import ErrorCode
from shared.messages.envelope import Message, MessageError, decode, encode
from shared.messages.pool import MAX_FRAME_BYTES, Answer, Call
from shared.runtime.errors import ServiceError
from shared.telemetry import about
from shared.transport.frames import FrameConnection, FrameError

R = TypeVar("R", bound=Message)
CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 2.0
Operation = Literal[
    "describe", "attach", "lease", "fetch", "allocate", "wanted", "seal", "pull", "release"
]


class PoolConnection:
    """One socket to one transfer; any number of calls at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last_id = 0
        self._frames = FrameConnection(
            max_bytes=MAX_FRAME_BYTES, on_frame=self._on_frame, on_lost=self._on_lost
        )

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Raises OSError or TimeoutError when nobody listens there."""
        connection = cls(path)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_unix_connection(lambda: connection._frames, str(path))
        return connection

    async def call(
        self,
        operation: Operation,
        message: Message,
        reply_type: type[R],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> R:
        """The answer; ServiceError: what the transfer answered, POOL_LOST, or DEADLINE."""
        if self.lost.is_set() or not self._frames.is_open:
            raise self._lost_error()
        self._last_id += 1
        number = self._last_id
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            served = about.current()
            call = Call(
                id=number,
                operation=operation,
                body=encode(message),
                request_id=served.request_id,
                traceparent=served.traceparent,
            )
            self._frames.send(encode(call))
            async with asyncio.timeout(timeout_s):
                answer = await future
        except FrameError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, f"{operation}: {error}") from None
        except TimeoutError:
            raise ServiceError(
                ErrorCode.DEADLINE,
                f"the pool did not answer {operation} within {timeout_s:g} s",
                is_retryable=True,
            ) from None
        finally:
            self._waiting.pop(number, None)
        if answer.error is not None:
            raise ServiceError.from_info(answer.error)
        try:
            return decode(answer.body, reply_type)
        except MessageError as error:
            raise ServiceError(
                ErrorCode.INTERNAL, f"the pool's answer to {operation} is malformed: {error}"
            ) from None

    def give_up(self) -> None:
        """Fail what waits and all that is asked from now on.

        The socket stays open: the transfer must not take back slots that are still written to.
        """
        if not self.lost.is_set():
            self._on_lost(None)

    def close(self) -> None:
        self._frames.close()

    def _on_frame(self, data: bytes) -> None:
        try:
            answer = decode(data, Answer)
        except MessageError as error:
            self._frames.abort(error)
            return
        future = self._waiting.get(answer.id)
        if future is not None and not future.done():
            future.set_result(answer)

    def _on_lost(self, _: Exception | None) -> None:
        self.lost.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost_error())

    def _lost_error(self) -> ServiceError:
        return ServiceError(
            ErrorCode.POOL_LOST,
            f"the transfer service behind {self.path.name} is gone or does not answer",
            is_retryable=True,
        )
