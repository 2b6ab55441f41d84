"""Faults at random moments, from a seed: which process, what happens to it, for how long."""

import asyncio
import random
import signal
from dataclasses import dataclass

from scripts.launcher.cluster import LocalCluster
from scripts.launcher.errors import LaunchError
from shared.runtime.clock import monotonic_s

STOPPED_S = (0.5, 4.5)
"""Shorter and longer than a lease."""
SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM")
GATEWAY_SIGNALS = ("SIGSTOP", "SIGTERM")
"""Streams of one that is killed end with it, as they must."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens next. A gateway is never killed."""

    process: str
    signal: str
    wait_s: float
    """Before it happens."""
    stopped_s: float = 0.0

    @property
    def sentence(self) -> str:
        lasting = f" for {self.stopped_s:.1f} s" if self.stopped_s else ""
        return f"{self.signal} to {self.process}{lasting}"


@dataclass(frozen=True, slots=True)
class Done:
    at_s: float
    sentence: str


def targets_of(cluster: LocalCluster) -> list[str]:
    names = cluster.names
    return [
        *names.gateways,
        *names.conductors,
        *names.cache_indexes,
        *names.nodes,
        *names.prefills,
        *names.decodes,
        "nats",
        "redis",
    ]


def next_plan(rng: random.Random, targets: list[str], mean_wait_s: float) -> Plan:
    name = rng.choice(targets)
    number = rng.choice(GATEWAY_SIGNALS if name.startswith("gateway") else SIGNALS)
    stopped_s = rng.uniform(*STOPPED_S) if number == "SIGSTOP" else 0.0
    return Plan(name, number, rng.uniform(0.5, 1.5) * mean_wait_s, stopped_s)


async def break_on(
    cluster: LocalCluster,
    rng: random.Random,
    mean_wait_s: float,
    over: asyncio.Event,
    done: list[Done],
) -> None:
    """One fault after the other until `over`; nothing is left stopped."""
    targets, start_s = targets_of(cluster), monotonic_s()
    while not over.is_set():
        plan = next_plan(rng, targets, mean_wait_s)
        if await _ends_within(over, plan.wait_s):
            return
        try:
            cluster.kill(plan.process, getattr(signal, plan.signal))
        except (LaunchError, ProcessLookupError):
            continue  # it is being started anew
        done.append(Done(monotonic_s() - start_s, plan.sentence))
        if plan.stopped_s:
            try:
                await _ends_within(over, plan.stopped_s)
            finally:
                cluster.kill(plan.process, signal.SIGCONT)


async def _ends_within(over: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return False
    return True
