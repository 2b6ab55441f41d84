"""uvicorn's HTTP protocol: a connection knows since when it is idle, and can be told to end.

A gateway that drains answers what still comes on open connections and says `Connection: close`
there. It never closes one whose client may take it for a good one: that client would meet a
connection that is being closed, and its question an error.
"""

import asyncio
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from services.gateway.joined_writes import JoinedWrites

EXTENSION = "abort-connection"


class Connections(ServerState):
    """All connections of one server, and whether they shall end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ending = False
        self.changed = asyncio.Event()
        """One has ended, or has nothing to do any more."""

    def end_after_next(self) -> None:
        """From now on answers close their connection, and say so."""
        self.is_ending = True
        for connection in self.connections:
            if isinstance(connection, Protocol):
                connection.end_after_answer()

    def close_idle(self, longer_than_s: float) -> float | None:
        """Close those that were idle for so long; in how many seconds the next one will have been.

        None: the others are at work, or there are none.
        """
        now_s = asyncio.get_running_loop().time()
        left_s = []
        for connection in list(self.connections):
            if not isinstance(connection, Protocol) or connection.idle_since_s is None:
                continue
            still_s = connection.idle_since_s + longer_than_s - now_s
            if still_s > 0:
                left_s.append(still_s)
            else:
                connection.transport.close()
        return min(left_s, default=None)


class Protocol(HttpToolsProtocol):
    """Closing waits until all that was written is read; aborting does not."""

    idle_since_s: float | None = None
    """None while a request comes or is answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self.idle_since_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._tell_change()

    def data_received(self, data: bytes) -> None:
        self.idle_since_s = None
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {**scope.get("extensions", {}), EXTENSION: {"abort": self._abort}}

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if isinstance(self.server_state, Connections) and self.server_state.is_ending:
            self.end_after_answer()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._note_if_idle()  # a body whose end was not waited for

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_if_idle()

    def _note_if_idle(self) -> None:
        if self.cycle.response_complete:  # not so when the next request waits already
            self.idle_since_s = self.loop.time()
            self._tell_change()

    def _tell_change(self) -> None:
        if isinstance(self.server_state, Connections):
            self.server_state.changed.set()

    def end_after_answer(self) -> None:
        """Nothing where the client was told already that the connection stays."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def _abort(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()


def abort_connection(scope: Scope) -> None:
    """Cut the connection of this request now; nothing where the server cannot."""
    extension = scope.get("extensions", {}).get(EXTENSION)
    if extension is not None:
        extension["abort"]()
