"""Publishes what a process says of itself, at a steady pace and soon when poked."""

import asyncio
from collections.abc import Callable

from shared.messages.reports import (
    IDLE_REPORT_INTERVAL_S,
    REPORT_INTERVAL_S,
    GatewayReport,
    InstanceReport,
    NodeReport,
)
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

Report = InstanceReport | NodeReport | GatewayReport
GATHER_S = 0.02
"""Many pokes, one report."""


class Heartbeat:
    """Owns the pace of one report subject; `run` is a task for the service's group.

    An idle process says the same at every second turn; what is new is said at the next.
    """

    def __init__(self, bus: Bus, subject: str, make: Callable[[], Report]) -> None:
        self._bus = bus
        self._subject = subject
        self._make = make
        self._poked = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._said: Report | None = None
        self._said_s = float("-inf")

    def poke(self) -> None:
        """Report soon: something changed that others should know.

        Often called while somebody waits for an answer: it costs a timer, and wakes nobody yet.
        """
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(GATHER_S, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._poked.set()

    async def run(self) -> None:
        while True:
            self._poked.clear()
            try:
                if self._bus.is_connected:
                    await self._say(self._make())
            except ServiceError:
                # Cut off: reports say nothing until the bus is back, which reconnects by itself.
                await asyncio.sleep(REPORT_INTERVAL_S)
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._poked.wait()
            except TimeoutError:
                continue

    async def _say(self, report: Report) -> None:
        is_old_news = report.is_idle and report == self._said
        now_s = monotonic_s()
        # Half a turn of slack: a timer that comes early must not cost another turn.
        since_s = now_s - self._said_s + REPORT_INTERVAL_S / 2
        if is_old_news and since_s < IDLE_REPORT_INTERVAL_S:
            return
        await self._bus.publish(self._subject, report)
        self._said, self._said_s = report, now_s
