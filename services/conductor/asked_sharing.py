"""Tells the other conductors what this one asks of instances, and hears what they ask.

A report is up to half a second old: without this, several conductors would send one burst to the
same instances. A lost message costs a little balance until the next report.
"""

import asyncio
import logging
from collections.abc import Callable

from shared.messages import subjects
from shared.messages.conductor import Asked, AskedPromise
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.scheduling.effects import SendReserve
from shared.scheduling.events import AskedElsewhere

GATHER_S = 0.003
FEW = 4
GATHER_FEW_S = 0.01
"""One or two requests unbalance nothing: by then they are placed, and nobody waits for what it
costs to tell of them. Well below `ASKED_SHOWS_S` of the view."""
MAX_WAITING = 4_096


class AskedSharing:
    def __init__(
        self,
        conductor_id: str,
        bus: Bus,
        feed: Callable[[AskedElsewhere], None],
        log: logging.Logger,
    ) -> None:
        self._id = conductor_id
        self._bus = bus
        self._feed = feed
        self._log = log
        self._waiting: list[SendReserve] = []
        self._has_some = asyncio.Event()

    def on_asked(self, effect: SendReserve) -> None:
        if len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(effect)
        self._has_some.set()

    def hear(self, asked: Asked) -> None:
        if asked.conductor == self._id:
            return
        for one in asked.promises:
            self._feed(
                AskedElsewhere(
                    model=one.model,
                    role=one.role,
                    instance=(one.id, one.incarnation),
                    num_tokens=one.num_tokens,
                    max_tokens=one.max_tokens,
                    cached_tokens=min(one.cached_tokens, one.num_tokens),
                )
            )

    async def run(self) -> None:
        """A task of the service."""
        while True:
            await self._has_some.wait()
            await asyncio.sleep(GATHER_S)
            if len(self._waiting) <= FEW:
                await asyncio.sleep(GATHER_FEW_S - GATHER_S)
            self._has_some.clear()
            waiting, self._waiting = self._waiting, []
            promises = [_promise_of(effect) for effect in waiting]
            try:
                await self._bus.publish(
                    subjects.CONDUCTOR_ASKED, Asked(conductor=self._id, promises=promises)
                )
            except ServiceError as error:
                self._log.debug("what is asked is not told: %s", error)


def _promise_of(effect: SendReserve) -> AskedPromise:
    return AskedPromise(
        model=effect.request.model,
        role=effect.role,
        id=effect.instance[0],
        incarnation=effect.instance[1],
        num_tokens=effect.request.num_tokens,
        max_tokens=effect.request.max_tokens,
        cached_tokens=effect.cached_tokens,
    )
