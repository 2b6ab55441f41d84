"""Appends journal lines to a file from a thread, so that a slow disk holds up no placement."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from shared.scheduling.effects import Effect
from shared.scheduling.events import Event
from shared.scheduling.journal import to_line

log = logging.getLogger("moonpool.conductor")
MAX_WAITING = 100_000


class JournalFile:
    """Lines wait in a bounded list; when the disk is too slow, or cannot be written, the file says
    how many it lacks. Placements go on whatever becomes of it."""

    def __init__(self, path: Path, header: str) -> None:
        self._path = path
        self._header = header
        self._lines: list[str] = [header]
        self._num_lost = 0
        self._is_trouble_said = False
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
        if not lines:
            return
        try:
            await asyncio.to_thread(self._append, lines)
        except OSError as error:
            kept = [self._header] if lines[0] == self._header else []
            self._lines[:0] = kept
            self._num_lost += len(lines) - len(kept)
            if not self._is_trouble_said:
                self._is_trouble_said = True
                log.error("MOONPOOL_JOURNAL=%s cannot be written: %s", self._path, error)
        else:
            self._is_trouble_said = False

    def _append(self, lines: list[str]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
