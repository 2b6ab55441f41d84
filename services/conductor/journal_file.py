"""Appends journal lines to a file from a thread, so that a slow disk holds up no placement."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from shared.scheduling.effects import Effect
from shared.scheduling.events import Event
from shared.scheduling.journal import to_line

MAX_WAITING = 100_000


class JournalFile:
    """Lines wait in a bounded list; when the disk is too slow the file says how many it lacks."""

    def __init__(self, path: Path, header: str) -> None:
        self._path = path
        self._lines: list[str] = [header]
        self._num_lost = 0
        self._has_lines = asyncio.Event()
        self._has_lines.set()

    def add(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        if len(self._lines) >= MAX_WAITING:
            self._num_lost += 1
            return
        if self._num_lost:
            self._lines.append(f"# {self._num_lost} steps are missing here")
            self._num_lost = 0
        self._lines.append(to_line(now_s, event, effects))
        self._has_lines.set()

    async def run(self) -> None:
        """Writes what waits; a task of the service."""
        while True:
            await self._has_lines.wait()
            await asyncio.sleep(0.5)
            await self.flush()

    async def flush(self) -> None:
        self._has_lines.clear()
        lines, self._lines = self._lines, []
        if lines:
            await asyncio.to_thread(self._append, lines)

    def _append(self, lines: list[str]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
