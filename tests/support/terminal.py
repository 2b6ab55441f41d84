"""A command in a terminal of its own (a pty of 80 × 24): what it shows, keys for it, its end."""

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.support.deadline import wait_until

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\r\x0f]")
START_S = 60.0


class Terminal:
    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, columns: int = 80, lines: int = 24
    ) -> None:
        self._main, own = os.openpty()
        fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(own)
        self.process = subprocess.Popen(
            command,
            stdin=own,
            stdout=own,
            stderr=own,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self._own = own
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._own)
        self._reader.join(10)
        os.close(self._main)

    @property
    def text(self) -> str:
        """All that was ever written, without control sequences."""
        return CONTROL.sub("", self._shown.decode("utf-8", "replace"))

    @property
    def modes(self) -> list[object]:
        """Of the terminal, as `termios.tcgetattr` tells them."""
        return termios.tcgetattr(self._own)

    def wait_for(self, text: str, *, since: int = 0) -> int:
        """Until `text` was shown after position `since`; the position behind it."""

        def found() -> int:
            at = self.text.find(text, since)
            return at + len(text) if at >= 0 else 0

        assert self.process.poll() is None or found(), self.text[-2_000:]
        return wait_until(found, timeout_s=START_S, what=f"{text!r} is shown")

    def press(self, key: str) -> None:
        os.write(self._main, key.encode())

    def wait_end(self) -> int:
        return self.process.wait(START_S)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last other end is closed
            while part := os.read(self._main, 65_536):
                self._shown += part
