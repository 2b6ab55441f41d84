"""Hears the heartbeats of peers and of ourselves, and ends the work of those that are gone."""

import asyncio

from shared.messages import subjects
from shared.messages.reports import REPORT_INTERVAL_S, GatewayReport, InstanceReport
from shared.runtime.bus import Bus, Subscription
from shared.runtime.clock import monotonic_s
from shared.worker.peer_watch import Peer, PeerWatch
from shared.worker.worker_loop import WorkerLoop


class Membership:
    """Feeds the PeerWatch and acts on it; `run` is a task of the service."""

    def __init__(self, bus: Bus, watch: PeerWatch, loop: WorkerLoop, instance_id: str) -> None:
        self._bus = bus
        self._watch = watch
        self._loop = loop
        self._instance_id = instance_id

    async def subscribe(self) -> list[Subscription]:
        own = subjects.report(self._loop.role, self._instance_id)
        peers = subjects.report(self._loop.watched_service, "*")
        subscribe, gateways = self._bus.subscribe, subjects.report("gateway", "*")
        return [
            await subscribe(gateways, GatewayReport, self._on_gateway),
            await subscribe(peers, InstanceReport, self._on_instance),
            await subscribe(own, InstanceReport, self._on_own),
        ]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            now_s = monotonic_s()
            self._loop.expire(now_s)
            for peer in self._watch.gone(now_s):
                self._loop.attempts.peer_gone(peer)

    def _on_gateway(self, report: GatewayReport) -> None:
        gateway = Peer("gateway", report.id, report.incarnation)
        self._watch.heard(gateway, monotonic_s())
        if report.lost_attempts:
            self._loop.end_lost(gateway, report.lost_attempts)

    def _on_instance(self, report: InstanceReport) -> None:
        self._watch.heard(Peer(report.service, report.id, report.incarnation), monotonic_s())

    def _on_own(self, _: InstanceReport) -> None:
        self._watch.echoed(monotonic_s())
