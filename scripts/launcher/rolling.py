"""A rolling restart of the processes of a launcher on this machine: one is told to drain, its
supervisor starts it anew, and only when that one is ready comes the next."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx
import psutil

from scripts.launcher import readiness
from scripts.launcher.errors import LaunchError
from scripts.launcher.readiness import Member
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s

MODULE = "services."
ORDER = ("gateway", "conductor", "cache-index", "prefill", "decode", "transfer")
"""Nodes last: their workers attach elsewhere meanwhile."""
LOOK_AGAIN_S = 0.2
KNOWN_TRIES = 15


@dataclass(frozen=True, slots=True)
class Running:
    """A process of a service, as its launcher started it."""

    member: Member
    process: psutil.Process
    """Knows when it was started: another one that gets its pid later is not it."""


@dataclass(frozen=True, slots=True)
class Restarted:
    member: Member
    seconds: float
    """From the signal until it was ready again."""


def processes_of(launcher_pid: int, nats_url: str) -> list[Running]:
    """Services that this launcher runs on that NATS, in the order of a rolling restart. Of one that
    hands over the successor, not the one that finishes what it has."""
    found: dict[Member, Running] = {}
    for child in psutil.Process(launcher_pid).children():
        try:
            argv, env = child.cmdline(), child.environ()
        except psutil.Error:  # it has ended
            continue
        name = env.get("MOONPOOL_INSTANCE_ID", "")
        if not argv or not argv[-1].startswith(MODULE) or env.get("MOONPOOL_NATS_URL") != nats_url:
            continue
        service = argv[-1].removeprefix(MODULE).replace("_", "-")
        member = Member(service, name)
        if member not in found or found[member].process.create_time() < child.create_time():
            found[member] = Running(member, child)
    return sorted(found.values(), key=lambda one: (ORDER.index(one.member.service), one.member.id))


async def restart_all(
    bus: Bus, http: httpx.AsyncClient, base_url: str, chosen: Sequence[Running], timeout_s: float
) -> AsyncIterator[Restarted]:
    """Each of them once; LaunchError when one is not ready again in time, the rest is left then."""
    for one in chosen:
        start_s = monotonic_s()
        old = one.process
        try:
            async with asyncio.timeout(timeout_s):
                before = await _known_incarnation(bus, one.member)
                old.send_signal(signal.SIGTERM)
                if one.member.service == "gateway":
                    await _until_succeeded(bus, http, base_url, one.member, before)
                else:
                    await _until_back(bus, http, base_url, one.member, old)
        except psutil.NoSuchProcess:
            raise LaunchError(
                f"{one.member.id} has ended meanwhile and is being started anew",
                hint="nothing was restarted after it: give the command again",
            ) from None
        except TimeoutError:
            raise LaunchError(
                f"{one.member.id} is not ready again {timeout_s:g} s after SIGTERM",
                hint="`moonpool status` shows what is missing; nothing else was restarted after it",
            ) from None
        yield Restarted(one.member, monotonic_s() - start_s)


async def _incarnation(bus: Bus, member: Member) -> str | None:
    """Of the one that is ready under this name, as conductors hear it."""
    state = await readiness.ask_conductor(bus)
    return None if state is None else readiness.heard(state).get((member.service, member.id))


async def _known_incarnation(bus: Bus, member: Member) -> str | None:
    """As above, asked for a while: a conductor that did not answer knows of no successor either."""
    for _ in range(KNOWN_TRIES):
        found = await _incarnation(bus, member)
        if found is not None:
            return found
        await asyncio.sleep(LOOK_AGAIN_S)
    return None


async def _until_succeeded(
    bus: Bus, http: httpx.AsyncClient, base_url: str, member: Member, before: str | None
) -> None:
    """Its successor serves; the old process may still finish long answers."""
    while True:
        now = await _incarnation(bus, member)
        if now not in (None, before) and await readiness.is_serving(http, base_url):
            return
        await asyncio.sleep(LOOK_AGAIN_S)


async def _until_back(
    bus: Bus, http: httpx.AsyncClient, base_url: str, member: Member, old: psutil.Process
) -> None:
    while True:
        if not old.is_running():
            seen = await readiness.ask(bus, http, [member], [base_url])
            if seen.is_ready:
                return
        await asyncio.sleep(LOOK_AGAIN_S)
