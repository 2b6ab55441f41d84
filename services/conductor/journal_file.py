"""Appends journal lines to a file from a thread, so that a slow disk holds up no placement.

A disk that takes no more (full, gone, read-only) ends the journal and nothing else.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from shared.scheduling.effects import Effect
from shared.scheduling.events import Event
from shared.scheduling.journal import to_line

MAX_WAITING = 100_000
WRITE_EVERY_S = 0.5


class JournalFile:
    """Lines wait in a bounded list; when the disk is too slow the file says how many it lacks."""

    def __init__(self, path: Path, header: str, log: logging.Logger) -> None:
        self._path = path
        self._log = log
        self._lines: list[str] = [header]
        self._num_lost = 0
        self._has_lines = asyncio.Event()
        self._has_lines.set()
        self.is_on = True
        self.lost_total = 0
        """Steps that are not in the file."""

    def add(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        if not self.is_on or len(self._lines) >= MAX_WAITING:
            self._num_lost += 1
            self.lost_total += 1
            return
        if self._num_lost:
            self._lines.append(f"# {self._num_lost} steps are missing here")
            self._num_lost = 0
        self._lines.append(to_line(now_s, event, effects))
        self._has_lines.set()

    async def run(self) -> None:
        """Writes what waits; a task of the service."""
        while self.is_on:
            await self._has_lines.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        self._has_lines.clear()
        lines, self._lines = self._lines, []
        if not lines or not self.is_on:
            return
        try:
            await asyncio.to_thread(self._append, lines)
        except OSError as error:
            # What was written of it may end in half a line: nothing may follow that.
            self.is_on = False
            self.lost_total += len(lines) + len(self._lines)
            self._lines = []
            self._log.warning(
                "the journal %s is off from now on: %s. Make room there, or set MOONPOOL_JOURNAL "
                "to another file, and start this conductor again",
                self._path,
                error,
            )

    def _append(self, lines: list[str]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
