"""Drives the core: events in, effects out, timers. Decides nothing itself."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from services.conductor import convert
from services.conductor.journal_file import JournalFile
from shared.messages import subjects
from shared.messages.common import ErrorCode, Ok
from shared.messages.conductor import PlaceReply
from shared.messages.prefill import ReserveReply
from shared.runtime.bus import Bus
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.runtime.tasks import Tasks
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.effects import (
    AnswerPlaced,
    AnswerRefused,
    Effect,
    SendRelease,
    SendReserve,
)
from shared.scheduling.events import (
    Event,
    PlaceAsked,
    ReserveAnswered,
    ReserveFailed,
    TimerFired,
)
from shared.scheduling.vocabulary import NodeMatch, PlacementDecision, PlacementRequest, Role
from shared.telemetry import about
from shared.telemetry.about import NOTHING, About

RESERVE_TIMEOUT_S = 0.4
RELEASE_TIMEOUT_S = 1.0


class Driver:
    def __init__(
        self,
        core: ConductorCore,
        bus: Bus,
        tasks: Tasks,
        clock: Callable[[], float],
        on_gone: Callable[[Role, str, str], None],
        journal: JournalFile | None,
        log: logging.Logger,
    ) -> None:
        self._core = core
        self._bus = bus
        self._tasks = tasks
        self._clock = clock
        self._on_gone = on_gone
        self._journal = journal
        self._log = log
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[PlaceAsked, asyncio.Future[PlaceReply]]] = {}
        self._runs: dict[int, bytes] = {}
        """What gateways sent along for the prefill instance; not for the core, nor its journal."""
        self._about: dict[int, About] = {}
        """Of those that wait: effects of one may be done in the task of another."""
        self.on_placed: Callable[[PlaceAsked, PlacementDecision], None] = lambda _asked, _made: None
        self.on_asked: Callable[[SendReserve], None] = lambda _effect: None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None

    async def place(
        self,
        request: PlacementRequest,
        matches: tuple[NodeMatch, ...],
        traceparent: str = "",
        run: bytes = b"",
    ) -> PlaceReply:
        """The core's answer; it bounds the time itself."""
        place_id = next(self._ids)
        self._about[place_id] = About(request.request_id, traceparent)
        answer: asyncio.Future[PlaceReply] = asyncio.get_running_loop().create_future()
        asked = PlaceAsked(place_id, request, matches)
        if run:
            self._runs[place_id] = run
        self._waiting[place_id] = (asked, answer)
        try:
            self.feed(asked)
            return await answer
        finally:
            self._waiting.pop(place_id, None)
            self._about.pop(place_id, None)
            self._runs.pop(place_id, None)

    def feed(self, event: Event) -> None:
        """One step of the core and what it wants done."""
        now_s = self._clock()
        effects = self._core.on_event(event, now_s)
        if self._journal is not None:
            self._journal.add(now_s, event, effects)
        for effect in effects:
            self._do(effect)
        self._set_timer()

    async def idle(self) -> None:
        """Until every placement that was asked for is answered."""
        while self._waiting:
            await asyncio.wait([answer for _, answer in self._waiting.values()])

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _do(self, effect: Effect) -> None:
        match effect:
            case SendReserve():
                self.on_asked(effect)
                asked = self._asked(effect)
                self._tasks.start_contained(self._reserve(effect, asked), name="reserve")
            case SendRelease():
                self._tasks.start_contained(self._release(effect), name="release")
            case AnswerPlaced():
                self._answer(effect.place_id, convert.placed_reply(effect.decision))
                waiting = self._waiting.get(effect.place_id)
                if waiting is not None:
                    self.on_placed(waiting[0], effect.decision)
            case AnswerRefused():
                extra = self._about.get(effect.place_id, NOTHING).extra
                self._log.info("refused: %s", effect.refusal.message, extra=extra)
                self._answer(effect.place_id, convert.refused_reply(effect))

    def _answer(self, place_id: int, reply: PlaceReply) -> None:
        waiting = self._waiting.get(place_id)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(reply)

    def _asked(self, effect: SendReserve) -> Coroutine[Any, Any, ReserveReply]:
        """Sent now: prefill's leaves before decode's is made, for token 0 waits for it."""
        subject = subjects.instance(effect.role, effect.instance[0], "reserve")
        traceparent = self._about.get(effect.place_id, NOTHING).traceparent
        run = self._runs.get(effect.place_id, b"")
        reserve = convert.reserve_of(effect, traceparent, run)
        try:
            return self._bus.ask(subject, reserve, ReserveReply, timeout_s=RESERVE_TIMEOUT_S)
        except ServiceError as error:
            return _failed(error)

    async def _reserve(self, effect: SendReserve, asked: Coroutine[Any, Any, ReserveReply]) -> None:
        traceparent = self._about.get(effect.place_id, NOTHING).traceparent
        about.work_for(effect.request.request_id, traceparent)
        try:
            reply = await asked
        except BusTimeout as error:
            self._fail(effect, error, is_gone=False)
            return
        except ServiceError as error:
            if isinstance(error, NoResponder) or error.code is ErrorCode.VOID_INCARNATION:
                self._on_gone(effect.role, *effect.instance)
                self._fail(effect, error, is_gone=True)
                return
            reply = ReserveReply(
                is_accepted=False, reason=error.message, retry_after_s=error.retry_after_s
            )
        self.feed(
            ReserveAnswered(
                place_id=effect.place_id,
                role=effect.role,
                instance=effect.instance,
                is_accepted=reply.is_accepted,
                reason=reply.reason,
                expected_start_s=reply.expected_start_s,
                retry_after_s=reply.retry_after_s,
                has_run=reply.has_run,
            )
        )

    def _fail(self, effect: SendReserve, error: ServiceError, *, is_gone: bool) -> None:
        self._log.info("%s %s: %s", effect.role, effect.instance[0], error.message)
        self.feed(
            ReserveFailed(effect.place_id, effect.role, effect.instance, is_gone, error.message)
        )

    async def _release(self, effect: SendRelease) -> None:
        subject = subjects.instance(effect.role, effect.instance[0], "cancel")
        try:
            await self._bus.request(
                subject, convert.cancel_of(effect), Ok, timeout_s=RELEASE_TIMEOUT_S
            )
        except ServiceError as error:
            self._log.debug("release at %s: %s; it ends by itself", subject, error.message)

    def _set_timer(self) -> None:
        deadline_s = self._core.next_deadline_s()
        if deadline_s == self._timer_s:
            return
        self.stop()
        self._timer, self._timer_s = None, deadline_s
        if deadline_s is not None:
            delay_s = max(0.0, deadline_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_s = None, None
        self.feed(TimerFired())


async def _failed(error: ServiceError) -> ReserveReply:
    raise error
