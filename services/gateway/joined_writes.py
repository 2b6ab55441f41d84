"""A connection's transport that writes what comes in one turn of the loop at once.

The head of an answer and its first event come one after the other: apart, each costs a call of the
system and wakes the client. Together they leave at once, for nothing else belongs to them.
"""

import asyncio
from typing import Any

HEAD = b"HTTP/"
WRITE_BYTES = 64 << 10
"""More is written at once, so that a slow reader is noticed as ever."""


class JoinedWrites:
    """Everything but writing and ending is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._num_bytes += len(data)
        has_begun = len(self._parts) == 2 and self._parts[0].startswith(HEAD)
        if has_begun or self._num_bytes >= WRITE_BYTES:
            self._write_out()
        elif len(self._parts) == 1:
            self._loop.call_soon(self._write_out)

    def close(self) -> None:
        """After all that was written."""
        self._write_out()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def _write_out(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        self._num_bytes = 0
        if data and not self._transport.is_closing():  # it may have been lost meanwhile
            self._transport.write(data)
