"""nats-py's client with a short way in and out.

nats-py reads in one task, queues each message for the task of its subscription, and writes in a
third one: two or three turns of the loop each way. Here a message is handed on while the bytes are
read, and written while it is published. Connecting, reconnecting, subscriptions and their replay,
pings, draining and what waits while cut off stay nats-py's.
"""

import asyncio
import itertools
import json
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription

from shared.runtime.nats_link import NatsLink
from shared.runtime.nats_parser import BadProtocolError, headers_of, status_of

log = logging.getLogger("moonpool.bus")
Handler = Callable[[str, str, bytes, bytes], None]
"""Called with subject, reply subject, payload and raw headers, while bytes are read: be quick."""
NO_RESPONDERS = "503"
_SUBJECT = re.compile(r"[^\s]+")


class PlainServerError(nats.errors.Error):
    def __str__(self) -> str:
        return "it speaks no TLS, which MOONPOOL_NATS_CA or tls:// asks for"


class Answer(NamedTuple):
    data: bytes
    raw_headers: bytes

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self.raw_headers)


class Listener(Subscription):
    """A subscription whose messages are handled at once; none ever waits."""

    def __init__(
        self, client: Client, sid: int, subject: str, queue: str, handler: Handler
    ) -> None:
        super().__init__(client, sid, subject, queue=queue)
        self.handler = handler

    def _start(self, error_cb: Any) -> None:
        """There is no task and no queue to start."""


class DirectClient(Client):
    """Speaks TLS when it was told to. nats-py leaves that to what the server says of itself, so
    that whoever sits in between could have the password in clear.

    Leaves a server at once. nats-py closes the connection first, and over TLS a server that hangs
    keeps it waiting for half a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._link: NatsLink | None = None
        self._answers: dict[str, asyncio.Future[Answer | None]] = {}
        self._answer_prefix = ""
        self._numbers = itertools.count(1)

    # --- in ------------------------------------------------------------------------------------
    async def listen(self, subject: str, handler: Handler, *, queue: str = "") -> Listener:
        """Subscribe. `handler` is called with each message, in order, as it is read."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self.is_draining:
            raise nats.errors.ConnectionDrainingError
        _check_subject(subject)
        self._sid += 1
        listener = Listener(self, self._sid, subject, queue, handler)
        self._subs[self._sid] = listener
        await self._send_subscribe(listener)
        return listener

    def _on_message(
        self, sid: int, subject: str, reply: str, payload: bytes, headers: bytes
    ) -> None:
        found = self._subs.get(sid)
        if isinstance(found, Listener):
            found._received += 1
            self.stats["in_msgs"] += 1
            self.stats["in_bytes"] += len(payload)
            try:
                found.handler(subject, reply, payload, headers)
            except Exception:  # one bad handler call must not end the connection
                log.exception("handler of %s failed", subject)
        elif found is not None:  # of NATS' own service protocol
            message = self._process_msg(sid, subject.encode(), reply.encode(), payload, headers)
            self._later(message)

    def _on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._answer_ping()
        elif line.startswith(b"PONG"):
            self._take_pong()
        elif line.startswith(b"-ERR"):
            self._later(self._take_error(line[4:]))
        elif line.startswith(b"INFO"):
            self._later(self._take_info(line[4:]))
        elif not line.startswith(b"+OK"):
            raise BadProtocolError(f"unknown line {line[:80]!r}")

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """By nats-py, in the task that reads."""
        if self._link is None:
            work.close()
        else:
            self._link.later(work)

    def _answer_ping(self) -> None:
        if self._link is not None:
            self._link.write(b"PONG\r\n")

    def _take_pong(self) -> None:
        """The first ping that waits is answered; whoever sent it may have stopped waiting."""
        if self._pongs:
            waiting = self._pongs.pop(0)
            if not waiting.done():
                waiting.set_result(True)
            self._pongs_received += 1
            self._pings_outstanding = 0

    async def _take_error(self, line: bytes) -> None:
        """The server closes the connection itself where it must end, and we connect again; nats-py
        would never come back after most of them: a password that changed, a slow reader."""
        said = line.strip().strip(b"'").decode("utf-8", "replace")
        await self._error_cb(nats.errors.Error(said))

    async def _take_info(self, line: bytes) -> None:
        """The server says something new of itself or of its cluster."""
        try:
            info = json.loads(line)
        except ValueError:
            log.warning("nats: INFO that is no JSON: %r", line[:80])
            return
        await self._process_info(info)

    async def _read_loop(self) -> None:
        """In place of nats-py's: bytes are parsed where they arrive, the rest is done here."""
        stream: Any = self._transport
        link = self._link = NatsLink(stream._io_writer, self._on_message, self._on_line)
        try:
            await link.begin(stream._io_reader)
            while (work := await link.next_work()) is not None:
                try:
                    await work
                except Exception:  # nats-py's own work; the connection goes on
                    log.exception("nats: could not take what the server sent")
        except asyncio.CancelledError:
            return
        finally:
            link.end()
        if self.is_closed or self.is_reconnecting:
            return
        error = link.error or nats.errors.UnexpectedEOF()
        await self._error_cb(error)
        await self._process_op_err(error)

    # --- out -----------------------------------------------------------------------------------
    def send(self, subject: str, payload: bytes, reply: str = "") -> bool:
        """Hand a message to the connection now; False where that needs waiting, or an error."""
        link = self._link
        size = len(payload)
        if (
            link is None
            or not link.is_open
            or size > self._max_payload
            or size + self._pending_data_size > self._max_pending_size
            or self.is_draining_pubs
            or not self.is_connected
        ):
            return False
        _check_subject(subject)
        if reply:
            _check_subject(reply)
        line = f"PUB {subject} {reply} {size}\r\n".encode()
        command = b"".join((line, payload, b"\r\n"))
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size
        if link.is_full or self._pending:
            self._write_later(command)
        else:
            link.write(command)
        return True

    def write_out(self) -> None:
        """What was sent leaves with this turn of the loop, not with the next one."""
        if self._link is not None:
            self._link.write_out()

    def _write_later(self, command: bytes) -> None:
        """The server reads too slowly: nats-py's task writes when the connection takes more."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue: asyncio.Queue[asyncio.Future[None]] | None = self._flush_queue
        if queue is not None and not queue.full():
            queue.put_nowait(asyncio.get_running_loop().create_future())

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """As nats-py's, and at once where nothing waits before it."""
        if headers or not self.send(subject, payload, reply):
            await super().publish(subject, payload, reply, headers)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """What waits is written here and now when the connection takes it."""
        link = self._link
        if link is None or not link.is_open or link.is_full or not self.is_connected:
            return await super()._flush_pending(force_flush)
        if self._pending:
            link.write(b"".join(self._pending))
        self._pending = []
        self._pending_data_size = 0
        done: asyncio.Future[None] = asyncio.Future()
        done.set_result(None)
        return done

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        """Of a flush: after all that was handed over, or its answer would say nothing."""
        if future is not None and self._link is not None:
            self._link.write_out()
        await super()._send_ping(future)

    # --- questions -----------------------------------------------------------------------------
    def ask(self, subject: str, payload: bytes, *, timeout_s: float) -> Coroutine[Any, Any, Answer]:
        """Send a question now; to be awaited for the first answer. After `listen_for_answers`.

        Raises nats.errors.NoRespondersError, TimeoutError, or what publish raises.
        """
        number = f"{next(self._numbers):x}"
        is_sent = self.send(subject, payload, self._answer_prefix + number)
        loop = asyncio.get_running_loop()
        answer = self._answers[number] = loop.create_future()
        timer = loop.call_later(timeout_s, self._hand_on, number, None)
        return self._answered(number, answer, timer, None if is_sent else (subject, payload))

    async def _answered(
        self,
        number: str,
        answer: asyncio.Future[Answer | None],
        timer: asyncio.TimerHandle,
        unsent: tuple[str, bytes] | None,
    ) -> Answer:
        try:
            if unsent is not None:
                await super().publish(*unsent, self._answer_prefix + number)
            found = await answer
        finally:
            timer.cancel()
            self._answers.pop(number, None)
        if found is None:
            raise TimeoutError
        if not found.data and status_of(found.raw_headers) == NO_RESPONDERS:
            raise nats.errors.NoRespondersError
        return found

    async def listen_for_answers(self) -> None:
        """Once, on one subject for all answers."""
        self._answer_prefix = f"{self.new_inbox()}."
        await self.listen(f"{self._answer_prefix}*", self._on_answer)

    def _on_answer(self, subject: str, _reply: str, payload: bytes, headers: bytes) -> None:
        self._hand_on(subject[len(self._answer_prefix) :], Answer(payload, headers))

    def _hand_on(self, number: str, answer: Answer | None) -> None:
        """To who waits for it, if anybody does; None: its time is over."""
        waiting = self._answers.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # --- connecting ----------------------------------------------------------------------------
    async def _process_op_err(self, e: Exception) -> None:
        if self.is_connected:
            self._abort()
        await super()._process_op_err(e)

    async def _connect_to_server(self, s: Srv) -> None:
        self._abort()  # what is left of a server that was reached and never spoke
        await super()._connect_to_server(s)

    def _abort(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if isinstance(writer, asyncio.StreamWriter):
            writer.transport.abort()

    def _connect_command(self) -> bytes:
        server = self._current_server
        is_told = self.options.get("tls") is not None or (
            server is not None and server.uri.scheme == "tls"
        )
        if is_told and not self._server_info.get("tls_required"):
            raise PlainServerError
        return super()._connect_command()


def _check_subject(subject: str) -> None:
    """White space would end the line, and what follows be taken for another command."""
    if _SUBJECT.fullmatch(subject) is None:
        raise nats.errors.BadSubjectError
