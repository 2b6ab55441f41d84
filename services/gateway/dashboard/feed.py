"""What all open pages of this gateway are told: looked at once, encoded once, while any is open."""

import asyncio
import json
import logging
from typing import Any

from services.gateway.dashboard.viewer import Viewer
from services.gateway.errors import ApiError
from shared.overview.collector import Collector
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks

TICK_S = 1.0
ASK_ALL_TICKS = 2
LINGER_S = 5.0
"""A page that is loaded again finds all in place."""
MAX_VIEWERS = 32


class Feed:
    """Owns the viewers and, while there are some, a collector. Costs nothing otherwise."""

    def __init__(self, bus: Bus, tasks: Tasks, gateway: str, log: logging.Logger) -> None:
        self._bus = bus
        self._tasks = tasks
        self._gateway = gateway
        self._log = log
        self._viewers: set[Viewer] = set()
        self._collector: Collector | None = None
        self._is_running = False
        self._is_closed = False
        self._left_s = 0.0
        self._sections: dict[str, str] = {}
        self._rows: dict[str, str] = {}
        """As they were sent, in JSON."""

    @property
    def num_viewers(self) -> int:
        return len(self._viewers)

    @property
    def is_running(self) -> bool:
        return self._is_running

    def join(self) -> Viewer:
        """Raises ApiError when as many look as may."""
        if self._is_closed:
            raise ApiError(503, "This gateway stops.", code="draining")
        if len(self._viewers) >= MAX_VIEWERS:
            message = f"{MAX_VIEWERS} pages show this dashboard already; close one of them."
            raise ApiError(503, message, code="too_many_viewers", retry_after_s=10.0)
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._sections:
            viewer.give(self._snapshot())
        if not self._is_running:
            self._is_running = True
            self._tasks.start_contained(self._run(), name="dashboard feed")
        return viewer

    def leave(self, viewer: Viewer) -> None:
        viewer.end()
        self._viewers.discard(viewer)
        if not self._viewers:
            self._left_s = monotonic_s()

    def close(self) -> None:
        """The gateway stops: all streams end."""
        self._is_closed = True
        for viewer in list(self._viewers):
            self.leave(viewer)

    def detail(self, key: str) -> dict[str, Any] | None:
        """One request with its decisions; None when it is not known (any more)."""
        return None if self._collector is None else self._collector.overview.detail(key)

    async def _run(self) -> None:
        collector = self._collector = Collector(self._bus, gateway=self._gateway)
        try:
            await self._watch(collector)
        finally:
            self._collector, self._is_running = None, False
            self._sections, self._rows = {}, {}
            for viewer in list(self._viewers):
                self.leave(viewer)  # they come back and start it anew
            await collector.stop()

    async def _watch(self, collector: Collector) -> None:
        try:
            await collector.start()
        except ServiceError as error:
            self._log.info("the dashboard hears no reports: %s", error)
            return
        tick = 0
        while self._is_watched():
            started_s = monotonic_s()
            await collector.refresh(asks_all=tick % ASK_ALL_TICKS == 1)
            self._tell(collector)
            # The second look comes at once: it knows who is there.
            if tick:
                await asyncio.sleep(max(0.1, TICK_S - (monotonic_s() - started_s)))
            tick += 1

    def _is_watched(self) -> bool:
        if self._is_closed:
            return False
        return bool(self._viewers) or monotonic_s() - self._left_s < LINGER_S

    def _tell(self, collector: Collector) -> None:
        """What is new since the last look, to everybody."""
        overview, now_s = collector.overview, monotonic_s()
        is_first = not self._sections
        sections = {name: _json(found) for name, found in overview.sections(now_s).items()}
        changed = {k: text for k, text in sections.items() if self._sections.get(k) != text}
        new: list[str] = []
        rows: dict[str, str] = {}
        for seen in overview.requests:
            text = self._rows.get(seen.key)
            if text is None:
                text = _json(overview.row(seen.key))
                new.append(text)
            rows[seen.key] = text
        self._sections, self._rows = sections, rows
        event = self._snapshot() if is_first else _event("update", now_s, changed, new)
        for viewer in list(self._viewers):
            viewer.give(event)

    def _snapshot(self) -> bytes:
        return _event("snapshot", monotonic_s(), self._sections, list(self._rows.values()))


def _event(kind: str, now_s: float, sections: dict[str, str], rows: list[str]) -> bytes:
    parts = [f'"now_s":{now_s:.3f}']
    parts += [f'"{name}":{text}' for name, text in sections.items()]
    parts.append(f'"requests":[{",".join(rows)}]')
    return f"event: {kind}\ndata: {{{','.join(parts)}}}\n\n".encode("utf-8", "replace")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
