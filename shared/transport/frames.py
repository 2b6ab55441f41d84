"""Frames on the unix socket between a worker and its transfer. Owns no meaning of what is framed.

A frame is 4 bytes of length, little endian, then that many bytes. Callbacks on the loop, no tasks.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import cast

LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """A peer that does not speak frames, or sends one that is too long."""


class FrameSplitter:
    """Cuts a byte stream into frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes."""
        self._buffer += data
        frames: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, at)
            if length > self._max_bytes:
                raise FrameError(f"frame of {length} bytes, at most {self._max_bytes} are allowed")
            end = at + LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[at + LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return frames


class FrameConnection(asyncio.Protocol):
    """One connection: calls `on_frame` for each frame and `on_lost` once at its end."""

    def __init__(
        self,
        *,
        max_bytes: int,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._splitter = FrameSplitter(max_bytes)
        self._max_bytes = max_bytes
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
        except FrameError as error:
            self.abort(error)
            return
        for frame in frames:
            if not self.is_open:
                return
            self._on_frame(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(error)

    def send(self, data: bytes) -> None:
        """Queue one frame; a peer that does not read for long is cut off."""
        if self._transport is None or not self.is_open:
            return
        if len(data) > self._max_bytes:
            raise FrameError(f"frame of {len(data)} bytes, at most {self._max_bytes} are allowed")
        if self._transport.get_write_buffer_size() > self._max_bytes:
            self.abort(FrameError("the other side does not read"))
            return
        self._transport.write(LENGTH.pack(len(data)) + data)

    def pause(self) -> None:
        if self._transport is not None and self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._on_lost(error)
