"""Publishes what a process says of itself, at a steady pace and at once when poked."""

import asyncio
from collections.abc import Callable

from shared.messages.envelope import Message
from shared.messages.reports import REPORT_INTERVAL_S
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError


class Heartbeat:
    """Owns the pace of one report subject; `run` is a task for the service's group."""

    def __init__(self, bus: Bus, subject: str, make: Callable[[], Message]) -> None:
        self._bus = bus
        self._subject = subject
        self._make = make
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Report now: something changed that others should know soon."""
        self._poked.set()

    async def run(self) -> None:
        while True:
            self._poked.clear()
            try:
                if self._bus.is_connected:
                    await self._bus.publish(self._subject, self._make())
            except ServiceError:
                # Cut off: reports say nothing until the bus is back, which reconnects by itself.
                await asyncio.sleep(REPORT_INTERVAL_S)
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._poked.wait()
                await asyncio.sleep(0.02)  # many pokes, one report
            except TimeoutError:
                continue
