"""Watches instances while they have work in flight: a dead or silent one is told at once."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.gateway.incarnation_order import IncarnationOrder
from services.gateway.life_events import InstanceLost, InstanceReported
from shared.messages import subjects
from shared.messages.common import InstanceRef
from shared.messages.reports import LEASE_S, InstanceReport, PingReply
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import NoResponder, ServiceError
from shared.runtime.lifecycle import PingRequest
from shared.runtime.tasks import Tasks

PING_INTERVAL_S = 0.25
PING_TIMEOUT_S = 1.0
BUS_SILENCE_S = 1.5
"""Three missed echoes of our own report: the bus is silent, not the instance."""
UNHEARD_S = 1.5
"""Time to come back by another server of a NATS cluster."""

Listener = Callable[[InstanceLost | InstanceReported], None]
Key = tuple[str, str, str]


@dataclass(slots=True)
class _Watched:
    heard_s: float
    listeners: list[Listener] = field(default_factory=list)


class InstanceWatch:
    """Pings each instance that is held, about four times a second; none when nothing is held."""

    def __init__(self, bus: Bus, tasks: Tasks) -> None:
        self._bus = bus
        self._tasks = tasks
        self._watched: dict[Key, _Watched] = {}
        self._order = IncarnationOrder()
        self._reconnected_s = float("-inf")
        self._bus_heard_s = monotonic_s()
        bus.on_reconnect(self._on_reconnect)

    def hold(self, service: str, instance: InstanceRef, listener: Listener) -> None:
        key = (service, instance.id, instance.incarnation)
        self._order.note(*key)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(heard_s=monotonic_s())
            self._tasks.start_contained(self._watch(key, watched), name=f"watch {instance.id}")
        watched.listeners.append(listener)

    def release(self, service: str, instance: InstanceRef, listener: Listener) -> None:
        """Unknown holds are ignored: an instance that was lost is released already."""
        watched = self._watched.get((service, instance.id, instance.incarnation))
        if watched is not None and listener in watched.listeners:
            watched.listeners.remove(listener)

    def on_echo(self) -> None:
        """Our own report came back: the bus works."""
        self._bus_heard_s = monotonic_s()

    def on_report(self, report: InstanceReport) -> None:
        """A report keeps its incarnation alive and ends every older one under the same id.

        Reports may come late: one of an old incarnation says nothing against a newer one.
        """
        self._order.note(report.service, report.id, report.incarnation)
        for key in [k for k in self._watched if k[:2] == (report.service, report.id)]:
            if key[2] != report.incarnation:
                if self._order.is_older(*key[:2], report.incarnation, key[2]):
                    continue
                self._lose(key, f"{report.id} was started anew", is_replaced=True)
                continue
            watched = self._watched[key]
            watched.heard_s = monotonic_s()
            is_idle = report.queued_requests == 0 and report.running == 0
            event = InstanceReported(report.incarnation, is_idle)
            for listener in list(watched.listeners):
                listener(event)

    async def _watch(self, key: Key, watched: _Watched) -> None:
        """Not at once: that an instance is gone shows first when it is sent what it shall do."""
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if self._watched.get(key) is not watched:
                return
            if not watched.listeners:
                del self._watched[key]
                return
            await self._ping(key, watched)

    async def _ping(self, key: Key, watched: _Watched) -> None:
        service, instance_id, incarnation = key
        subject = subjects.ping(service, instance_id)
        try:
            reply = await self._bus.request(
                subject, PingRequest(), PingReply, timeout_s=PING_TIMEOUT_S
            )
        except NoResponder:
            # After a restart of NATS others may come back later than we do; of a cluster only their
            # server may have gone.
            unheard_s = monotonic_s() - watched.heard_s
            is_cut_off = self._bus.num_servers > 1 and unheard_s < UNHEARD_S
            if monotonic_s() - self._reconnected_s > LEASE_S and not is_cut_off:
                self._lose(key, f"{instance_id} is gone", is_replaced=False)
                return
        except ServiceError:
            is_bus_silent = monotonic_s() - self._bus_heard_s > BUS_SILENCE_S
            if is_bus_silent or not self._bus.is_connected:
                watched.heard_s = monotonic_s()  # we are cut off, not they
        else:
            is_own = reply.incarnation == incarnation
            if not is_own and not self._order.is_older(
                service, instance_id, reply.incarnation, incarnation
            ):
                self._lose(key, f"{instance_id} was started anew", is_replaced=True)
                return
            if is_own:
                watched.heard_s = monotonic_s()
        if monotonic_s() - watched.heard_s > LEASE_S:
            self._lose(key, f"{instance_id} is silent", is_replaced=False)

    def _lose(self, key: Key, reason: str, *, is_replaced: bool) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        event = InstanceLost(key[2], reason, is_replaced)
        for listener in list(watched.listeners):
            listener(event)

    def _on_reconnect(self) -> None:
        self._reconnected_s = monotonic_s()
        for watched in self._watched.values():
            watched.heard_s = self._reconnected_s
