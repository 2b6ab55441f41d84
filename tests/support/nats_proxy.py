"""Between one process and NATS: passes, holds or delays bytes; loses, repeats or swaps messages.

NATS' own protocol, without TLS: what the server sends is read frame by frame, so that a message is
lost, repeated or swapped as a whole. Lives in a thread of its own: clusters outlast a test's loop.
"""

import asyncio
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

CHUNK_BYTES = 64 << 10
LOOK_S = 0.01
EVENTS = re.compile(rb"^moonpool\.(index\.|report\.|bills|conductor\.(asked|misses|outcomes))")
"""What is told to all and answered by nobody: it may get lost."""
STREAMS = re.compile(rb"^moonpool\.(index\.|report\.|gateway\.)")
"""What may come twice or in another order."""


@dataclass(slots=True)
class Harm:
    """What is done to this process' connection; shared by all its connections."""

    is_held: bool = False
    """A partition: nothing passes, nothing is closed."""
    delay_s: float = 0.0
    lost: float = 0.0
    """Share of the events that are lost."""
    repeated: float = 0.0
    swapped: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))


@dataclass(frozen=True, slots=True)
class Frame:
    subject: bytes
    """Empty for what is no message."""
    data: bytes


class Frames:
    """Cuts what a server sends into lines and messages."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> list[Frame]:
        self._rest += data
        found = []
        while (frame := self._next()) is not None:
            found.append(frame)
        return found

    def _next(self) -> Frame | None:
        end = self._rest.find(b"\r\n")
        if end < 0:
            return None
        line = self._rest[:end]
        size, subject = end + 2, b""
        if line.startswith((b"MSG ", b"HMSG ")):
            words = line.split(b" ")
            size += int(words[-1]) + 2
            subject = words[1]
        if len(self._rest) < size:
            return None
        frame, self._rest = Frame(subject, self._rest[:size]), self._rest[size:]
        return frame


class NatsProxy:
    """`with NatsProxy(url) as proxy`: processes then use `proxy.url`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 4222)
        self.harm = Harm()
        self.url = ""
        self._thread = threading.Thread(target=self._run, name="nats proxy", daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._host())

    async def _host(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [back]
        try:
            far, on = await asyncio.open_connection(*self._target)
            writers.append(on)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(near, on, lambda data: [data]))
                group.create_task(self._pass(far, back, self._harmed()))
        except* (OSError, asyncio.CancelledError):
            pass  # an end of it is closed; the other follows
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _pass(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        change: Callable[[bytes], list[bytes]],
    ) -> None:
        while data := await source.read(CHUNK_BYTES):
            while self.harm.is_held:  # noqa: ASYNC110  (set from another thread)
                await asyncio.sleep(LOOK_S)
            if self.harm.delay_s:
                await asyncio.sleep(self.harm.delay_s)
            for part in change(data):
                target.write(part)
            await target.drain()
        raise ConnectionResetError("one side closed")

    def _harmed(self) -> Callable[[bytes], list[bytes]]:
        frames = Frames()

        def change(data: bytes) -> list[bytes]:
            found: list[bytes] = []
            for frame in frames.push(data):
                found += self._what_becomes_of(frame, found)
            return found

        return change

    def _what_becomes_of(self, frame: Frame, before: list[bytes]) -> list[bytes]:
        harm = self.harm
        if EVENTS.match(frame.subject) and harm.rng.random() < harm.lost:
            return []
        if not STREAMS.match(frame.subject):
            return [frame.data]
        if before and harm.rng.random() < harm.swapped:
            return [frame.data, before.pop()]
        if harm.rng.random() < harm.repeated:
            return [frame.data, frame.data]
        return [frame.data]
