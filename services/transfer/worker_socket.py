"""The unix socket that workers attach to: frames in, calls in tasks, frames out.

Knows nothing of what a call does; `WorkerCalls` does it.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from shared.messages.common import ErrorCode, ErrorInfo
from shared.messages.envelope import Message, MessageError, decode, encode
from shared.messages.pool import MAX_FRAME_BYTES, Answer, Call
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.telemetry import about
from shared.transport.frames import FrameConnection, FrameError

log = logging.getLogger("moonpool.transfer.socket")
MAX_CALLS = 1_024
"""Calls of one socket that run at once; more are not read from it until some end. Far more than a
worker has prompts that wait for their prefix: a release or a seal must not wait behind those."""


class WorkerSession(Protocol):
    """What one socket can ask for."""

    async def call(self, call: Call) -> Message:
        """The answer's body; ServiceError or MessageError for a refusal."""

    async def end(self) -> None:
        """The socket is closed: give everything back."""


class WorkerSessions(Protocol):
    def open(self) -> WorkerSession:
        """A session for a new socket."""


class WorkerSocket:
    """Listens until `close`; each connection has one session."""

    def __init__(self, tasks: Tasks, sessions: WorkerSessions) -> None:
        self._tasks = tasks
        self._sessions = sessions
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def listen(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, str(path))
        await asyncio.to_thread(path.chmod, 0o600)

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """No new connections, and those that are there end."""
        self.stop_listening()
        for connection in list(self._connections):
            connection.frames.close()

    def _accept(self) -> FrameConnection:
        connection = _Connection(self._tasks, self._sessions.open(), self._connections.discard)
        self._connections.add(connection)
        return connection.frames


class _Connection:
    def __init__(
        self, tasks: Tasks, session: WorkerSession, on_end: Callable[["_Connection"], None]
    ) -> None:
        self._tasks = tasks
        self._session = session
        self._on_end = on_end
        self._num_running = 0
        self.frames = FrameConnection(
            max_bytes=MAX_FRAME_BYTES, on_frame=self._on_frame, on_lost=self._on_lost
        )

    def _on_frame(self, data: bytes) -> None:
        try:
            call = decode(data, Call)
        except MessageError as error:
            log.warning("closing a worker's socket: %s", error)
            self.frames.abort(error)
            return
        self._num_running += 1
        if self._num_running == MAX_CALLS:
            self.frames.pause()
        self._tasks.start_contained(self._run(call), name=f"worker {call.operation}")

    async def _run(self, call: Call) -> None:
        about.work_for(call.request_id, call.traceparent)
        try:
            answer = Answer(id=call.id, body=encode(await self._session.call(call)))
            log.debug("%s answered", call.operation)
        except ServiceError as error:
            answer = Answer(id=call.id, error=error.info)
        except MessageError as error:
            answer = _failure(call, ErrorCode.BAD_REQUEST, str(error), error.field)
        except asyncio.CancelledError:
            # Stopped by `release` or by the end of the service; whoever asked may still listen.
            answer = _failure(call, ErrorCode.CANCELLED, f"{call.operation} was stopped")
            self._send(answer)
            raise
        except Exception:  # the boundary between one call and the service
            log.exception("%s failed", call.operation)
            answer = _failure(call, ErrorCode.INTERNAL, f"{call.operation} failed; see the log")
        finally:
            self._num_running -= 1
            if self._num_running == MAX_CALLS - 1:
                self.frames.resume()
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        try:
            self.frames.send(encode(answer))
        except FrameError as error:
            self.frames.send(
                encode(
                    Answer(
                        id=answer.id,
                        error=ErrorInfo(code=ErrorCode.BAD_REQUEST, message=f"answer: {error}"),
                    )
                )
            )

    def _on_lost(self, _: Exception | None) -> None:
        self._on_end(self)
        ending = self._session.end()
        try:
            self._tasks.start_contained(ending, name="worker detached")
        except RuntimeError:
            ending.close()  # the whole service ends right now, and the pool with it


def _failure(call: Call, code: ErrorCode, message: str, field: str | None = None) -> Answer:
    return Answer(id=call.id, error=ErrorInfo(code=code, message=message, field=field))
