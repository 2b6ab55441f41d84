"""One connection to a NATS server, from its greeting to its end: bytes are parsed as they come."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from shared.runtime.nats_parser import BadProtocolError, NatsParser, OnLine, OnMessage

log = logging.getLogger("moonpool.bus")
Work = Coroutine[Any, Any, None]
MAX_WORK = 1_024
"""What waits for the task of the connection; reading pauses above it."""
WRITE_BYTES = 64 << 10
"""More is written at once, not at the end of this turn of the loop."""


class NatsLink(asyncio.Protocol):
    """Takes a connection over from the stream that greeted the server; the stream still hears when
    writing may go on and when all is over, for those who wait there.

    `on_message` and `on_line` are called while bytes are read.
    """

    def __init__(
        self, writer: asyncio.StreamWriter, on_message: OnMessage, on_line: OnLine
    ) -> None:
        # In the interface of a writer there is only what writes; a connection reads, too.
        self._transport: Any = writer.transport
        self._stream: Any = self._transport.get_protocol()
        self._parser = NatsParser(on_message, on_line)
        self._work: asyncio.Queue[Work | None] = asyncio.Queue()
        self.error: Exception | None = None
        """Why the connection ended, where there is a reason."""
        self.is_open = False
        self.is_full = False
        """More has been written than the server reads now."""
        self._is_paused = self._is_left = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._loop = asyncio.get_running_loop()

    async def begin(self, reader: asyncio.StreamReader) -> None:
        stream: Any = reader
        has_ended = stream._eof  # in public it says so once nothing is left to be read
        self._transport.set_protocol(self)
        # What the stream has read already comes first; told of an end, it hands that out at once.
        reader.feed_eof()
        self.is_open = not self._transport.is_closing()
        try:
            self.data_received(await reader.read())
        except OSError as error:  # the connection broke before it was taken over
            self.error = error
        if not self.is_open:
            self._work.put_nowait(None)
        elif has_ended:
            self._transport.close()  # the stream would have kept it half open
        else:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """In order. What one turn of the loop writes goes out together: the server serves each
        record of TLS to its end, and would wake up one receiver long before the next."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= WRITE_BYTES:
            self.write_out()
        elif len(self._out) == 1:
            self._loop.call_soon(self.write_out)

    def write_out(self) -> None:
        """Nothing more comes that should go with it."""
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if data and self.is_open:
            self._transport.write(data)

    def later(self, work: Work) -> None:
        """Have it done by who takes `next_work`."""
        if self._is_left:
            work.close()
            return
        self._work.put_nowait(work)
        if self._work.qsize() > MAX_WORK and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    async def next_work(self) -> Work | None:
        """In order; None when the connection has ended."""
        if self._is_paused and self._work.empty() and self.is_open:
            self._is_paused = False
            self._transport.resume_reading()
        return await self._work.get()

    def end(self) -> None:
        """Nobody takes its work any more."""
        self.is_open, self._is_left = False, True
        while not self._work.empty():
            work = self._work.get_nowait()
            if work is not None:
                work.close()

    # --- what the transport calls --------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except BadProtocolError as error:
            log.warning("nats: %s", error)
            self.error = self.error or error
            self._transport.abort()

    def pause_writing(self) -> None:
        self.is_full = True
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self.is_full = False
        self._stream.resume_writing()

    def eof_received(self) -> None:
        """The transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.error = self.error or exc
        self._stream.connection_lost(exc)
        self._work.put_nowait(None)
