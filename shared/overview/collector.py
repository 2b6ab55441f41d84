"""Asks a cluster over the bus what an Overview needs, while somebody looks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from shared.messages.index import HotReply, HotRequest, IndexStats
from shared.messages.micro import MicroPing
from shared.messages.recent import KEPT_REQUESTS, RecentReply, RecentRequest
from shared.messages.reports import GatewayReport, InstanceReport, NodeReport
from shared.overview.overview import Overview
from shared.runtime.bus import Bus, Subscription
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import NoResponder, ServiceError

T = TypeVar("T")
ASK_TIMEOUT_S = 1.5
GATHER_S = 0.4
NUM_HOT = 20
MAX_PAGES = 40
"""Of one gateway's requests at one go."""


class Collector:
    """Owns the subscriptions and the place in each gateway's requests.

    `gateway` is one that is known before its first report. `refresh` never raises for what does
    not answer; the overview says it.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        gateway: str | None = None,
        max_requests: int = KEPT_REQUESTS,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self.overview = Overview(max_requests)
        self._bus = bus
        self._gateway = gateway
        self._max_requests = max_requests
        self._clock = clock
        self._subscriptions: list[Subscription] = []
        self._places: dict[str, tuple[str, int]] = {}
        """By gateway: its incarnation and the last number that was read."""

    async def start(self) -> None:
        """Hear reports. Raises ServiceError when cut off."""
        subscribe, add = self._bus.subscribe, self._subscriptions.append
        add(await subscribe(subjects.report("gateway", "*"), GatewayReport, self._hear))
        add(await subscribe(subjects.report("transfer", "*"), NodeReport, self._hear))
        for role in ("prefill", "decode"):
            add(await subscribe(subjects.report(role, "*"), InstanceReport, self._hear))

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            await subscription.stop()
        self._subscriptions.clear()

    async def refresh(self, *, asks_all: bool = True) -> None:
        """One look at everything that is asked for; takes as long as the slowest answer.

        `asks_all`: also who is there at all, which takes GATHER_S.
        """
        overview = self.overview
        overview.is_connected = self._bus.is_connected
        if not overview.is_connected:
            return
        gateways = set(overview.members.live_gateways(self._clock()))
        if self._gateway is not None:
            gateways.add(self._gateway)
        questions = {
            "conductor": self._ask_state(),
            "cache-index": self._ask_index(),
            **{gateway: self._read(gateway) for gateway in sorted(gateways)},
        }
        if asks_all:
            questions["processes"] = self._ask_all()
        await asyncio.gather(*(self._answered(who, one) for who, one in questions.items()))
        for name in overview.unanswered.keys() - {"processes", *questions}:
            del overview.unanswered[name]
        overview.is_connected = self._bus.is_connected

    def _hear(self, report: GatewayReport | NodeReport | InstanceReport) -> None:
        self.overview.hear(report, self._clock())

    async def _answered(self, who: str, question: Awaitable[None]) -> None:
        try:
            await question
        except NoResponder:
            self.overview.unanswered[who] = "nobody listens"
        except ServiceError as error:
            self.overview.unanswered[who] = error.message
        else:
            self.overview.unanswered.pop(who, None)

    async def _ask_state(self) -> None:
        state = await self._bus.request(
            subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=ASK_TIMEOUT_S
        )
        self.overview.note_state(state, self._clock())

    async def _ask_index(self) -> None:
        stats = await self._bus.request(
            subjects.INDEX_STATS, Empty(), IndexStats, timeout_s=ASK_TIMEOUT_S
        )
        hot = await self._bus.request(
            subjects.INDEX_HOT, HotRequest(limit=NUM_HOT), HotReply, timeout_s=ASK_TIMEOUT_S
        )
        self.overview.note_index(stats, hot)

    async def _ask_all(self) -> None:
        pings = await self._bus.gather(subjects.MICRO_PING, Empty(), MicroPing, within_s=GATHER_S)
        self.overview.note_answers(pings, self._clock())

    async def _read(self, gateway: str) -> None:
        """Requests that ended there since the last look; the last ones at the first."""
        for _ in range(MAX_PAGES):
            incarnation, after = self._places.get(gateway, ("", -1))
            limit = 0 if after < 0 else 250
            reply = await self._bus.request(
                subjects.gateway_recent(gateway),
                RecentRequest(after=max(after, 0), limit=limit),
                RecentReply,
                timeout_s=ASK_TIMEOUT_S,
            )
            if reply.incarnation != incarnation:
                first = max(0, reply.newest - self._max_requests)
                self._places[gateway] = (reply.incarnation, first)
            else:
                self._take(reply)
                last = reply.requests[-1].number if reply.requests else reply.newest
                self._places[gateway] = (incarnation, last)
            if self._places[gateway][1] >= reply.newest:
                return

    def _take(self, reply: RecentReply) -> None:
        now_s = self._clock()
        for request in reply.requests:
            ended_s = now_s - (reply.now_ms - request.ended_ms) / 1_000
            self.overview.note_ended(reply.gateway, reply.incarnation, ended_s, request)
