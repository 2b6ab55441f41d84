"""Is a cluster ready? Asked of its conductor over NATS and of its gateways over HTTP."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from shared.messages.reports import GatewayReport, InstanceReport, NodeReport, PingReply
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.lifecycle import PingRequest

ASK_TIMEOUT_S = 2.0
ANNOUNCED = frozenset({"gateway", "transfer", "prefill", "decode"})


@dataclass(frozen=True, slots=True)
class Readiness:
    """Who is ready and who is waited for, by name."""

    ready: tuple[str, ...]
    waiting: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return not self.waiting


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster, as it is named on the bus."""

    service: str
    id: str

    @property
    def is_announced(self) -> bool:
        """Is it one that conductors know by its heartbeat?"""
        return self.service in ANNOUNCED


def reports_of(state: StateReply) -> tuple[InstanceReport | NodeReport | GatewayReport, ...]:
    """Everything that the conductor hears."""
    return (*state.instances, *state.nodes, *state.gateways)


def heard(state: StateReply) -> dict[tuple[str, str], str]:
    """Incarnation by (service, id) of what the conductor hears and takes for ready."""
    ready = (one for one in reports_of(state) if one.state == "ready")
    return {(one.service, one.id): one.incarnation for one in ready}


async def ping(bus: Bus, member: Member) -> PingReply | None:
    """What the process says of itself; None when it is not there."""
    try:
        return await bus.request(
            subjects.ping(member.service, member.id),
            PingRequest(),
            PingReply,
            timeout_s=ASK_TIMEOUT_S,
        )
    except ServiceError:
        return None


async def ask_conductor(bus: Bus) -> StateReply | None:
    """What a conductor sees; None when none answers."""
    try:
        return await bus.request(
            subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=ASK_TIMEOUT_S
        )
    except ServiceError:
        return None


async def is_serving(http: httpx.AsyncClient, base_url: str) -> bool:
    """Does the gateway say that a model can be served?"""
    try:
        return (await http.get(f"{base_url}/ready", timeout=ASK_TIMEOUT_S)).status_code == 200
    except httpx.HTTPError:
        return False


async def ask(
    bus: Bus, http: httpx.AsyncClient, members: Iterable[Member], base_urls: Iterable[str]
) -> Readiness:
    """One look: each member says that it is ready, the conductor heard it from this very
    incarnation, and every gateway serves."""
    members = list(members)
    state, answers = await asyncio.gather(
        ask_conductor(bus), asyncio.gather(*(ping(bus, member) for member in members))
    )
    incarnations = {} if state is None else heard(state)
    ready: list[str] = []
    waiting: list[str] = []
    for member, answer in zip(members, answers, strict=True):
        is_ready = answer is not None and answer.state == "ready"
        if answer is not None and member.is_announced:
            is_ready = is_ready and incarnations.get((member.service, member.id)) == (
                answer.incarnation
            )
        (ready if is_ready else waiting).append(member.id)
    if not waiting:
        waiting = [url for url in base_urls if not await is_serving(http, url)]
    return Readiness(tuple(ready), tuple(waiting))
