"""uvicorn's HTTP protocol, with a way to drop a connection whose client does not read."""

from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "abort-connection"


class Protocol(HttpToolsProtocol):
    """Closing waits until all that was written is read; aborting does not."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {**scope.get("extensions", {}), EXTENSION: {"abort": self._abort}}

    def _abort(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()


def abort_connection(scope: Scope) -> None:
    """Cut the connection of this request now; nothing where the server cannot."""
    extension = scope.get("extensions", {}).get(EXTENSION)
    if extension is not None:
        extension["abort"]()
