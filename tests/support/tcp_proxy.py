"""Sits between a node and its peers' streams: watches, cuts, changes or holds back bytes."""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

CHUNK_BYTES = 64 << 10


@dataclass(slots=True)
class Faults:
    """Of the bytes that come from the node that is asked, counted over all streams."""

    cut_after: int | None = None
    flip_at: int | None = None
    hold_after: int | None = None
    """From here on nothing passes any more, and nothing is closed."""
    bytes_per_s: float | None = None


@dataclass(slots=True, eq=False)
class Proxy:
    """`async with Proxy(port) as proxy`; peers then call `proxy.port`."""

    target_port: int
    faults: Faults = field(default_factory=Faults)
    port: int = 0
    seen: bytearray = field(default_factory=bytearray)
    """Everything that passed, both ways."""
    num_passed: int = 0
    is_recording: bool = True
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far, on = await asyncio.open_connection("127.0.0.1", self.target_port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(near, on, is_answer=False))
                group.create_task(self._pass(far, back, is_answer=True))
        except* OSError:
            pass  # an end of it is closed; the other follows
        finally:
            for writer in (on, back):
                writer.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := bytearray(await source.read(CHUNK_BYTES)):
            if is_answer:
                await self._harm(data)
            if self.is_recording:
                self.seen += data
            target.write(data)
            await target.drain()
        raise ConnectionResetError("one side closed")

    async def _harm(self, data: bytearray) -> None:
        faults, start = self.faults, self.num_passed
        end = start + len(data)
        self.num_passed = end
        if faults.bytes_per_s:
            await asyncio.sleep(len(data) / faults.bytes_per_s)
        if faults.flip_at is not None and start <= faults.flip_at < end:
            data[faults.flip_at - start] ^= 1
        if faults.cut_after is not None and end > faults.cut_after:
            raise ConnectionResetError("cut by the test")
        if faults.hold_after is not None and end > faults.hold_after:
            await asyncio.Event().wait()
