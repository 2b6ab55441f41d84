"""Collects what a process saw of others' work and tells the conductors twice a second at most."""

import asyncio
import logging
from typing import Literal

from shared.messages import subjects
from shared.messages.outcomes import MAX_ITEMS, OutcomeItem, Outcomes
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

GATHER_S = 0.5
log = logging.getLogger("moonpool.outcomes")


class OutcomeReporter:
    """Sleeps while nothing is seen. What is lost or too much costs evidence, nothing else."""

    def __init__(self, bus: Bus, witness: str) -> None:
        self._bus = bus
        self._witness = witness
        self._waiting: list[OutcomeItem] = []
        self._has_some = asyncio.Event()

    def note(
        self,
        service: Literal["prefill", "decode", "transfer"],
        id: str,
        incarnation: str,
        *,
        is_good: bool,
        took_s: float = 0.0,
        expected_s: float = 0.0,
    ) -> None:
        if len(self._waiting) >= MAX_ITEMS:
            return
        self._waiting.append(
            OutcomeItem(
                service=service,
                id=id,
                incarnation=incarnation,
                is_good=is_good,
                took_s=max(took_s, 0.0),
                expected_s=max(expected_s, 0.0),
            )
        )
        self._has_some.set()

    async def run(self) -> None:
        """A task of the service."""
        while True:
            await self._has_some.wait()
            await asyncio.sleep(GATHER_S)
            self._has_some.clear()
            items, self._waiting = self._waiting, []
            try:
                message = Outcomes(witness=self._witness, items=items)
                await self._bus.publish(subjects.CONDUCTOR_OUTCOMES, message)
            except ServiceError as error:
                log.debug("what was seen is not told: %s", error)
