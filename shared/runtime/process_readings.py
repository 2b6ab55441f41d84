"""What every process tells of itself as metrics: who it is, its loop, its connection."""

import asyncio
import importlib.metadata
from collections.abc import Iterator

from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.telemetry import metrics
from shared.telemetry.metric import Histogram, Reading

INTERVAL_S = 1.0


class ProcessReadings:
    """Owns the measurement of the loop's lag."""

    def __init__(self, service: str, process_id: str, bus: Bus) -> None:
        self._labels = (service, process_id, importlib.metadata.version("moonpool"))
        self._bus = bus
        self._lag = Histogram(metrics.LOOP_LAG)

    async def watch_loop(self) -> None:
        """A task of the process: how late is a timer?"""
        while True:
            due_s = monotonic_s() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._lag.observe(max(monotonic_s() - due_s, 0.0))

    def readings(self) -> Iterator[Reading]:
        yield metrics.BUILD_INFO.of(1, *self._labels)
        yield metrics.BUS_CONNECTED.of(self._bus.is_connected)
        yield metrics.BAD_MESSAGES.of(self._bus.bad_messages_total)
        yield from self._lag.readings()
