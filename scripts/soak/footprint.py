"""What the processes of a cluster hold on this machine, and what its services hold for requests."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from scripts.launcher.cluster import LocalCluster
from scripts.launcher.errors import LaunchError
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from shared.messages.index import IndexStats
from shared.runtime.bus import Bus

ASK_TIMEOUT_S = 5.0
SLACK_DESCRIPTORS = SLACK_THREADS = 4
"""May come and go: a connection between pools, a thread of an executor."""
SLACK_BYTES = 48 << 20
"""An allocator gives back late."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process."""

    descriptors: int
    threads: int
    memory_bytes: int
    """Resident, without what it shares: pools do not count."""

    def exceeds(self, other: "Footprint") -> list[str]:
        """What it has more of than `other`, beyond what comes and goes."""
        found = []
        if self.descriptors > other.descriptors + SLACK_DESCRIPTORS:
            found.append(f"{self.descriptors} descriptors, {other.descriptors} before")
        if self.threads > other.threads + SLACK_THREADS:
            found.append(f"{self.threads} threads, {other.threads} before")
        if self.memory_bytes > other.memory_bytes + SLACK_BYTES:
            found.append(f"{self.memory_bytes >> 20} MB, {other.memory_bytes >> 20} before")
        return found


def footprint_of(pid: int) -> Footprint:
    process = psutil.Process(pid)
    with process.oneshot():
        memory = process.memory_info()
        return Footprint(process.num_fds(), process.num_threads(), memory.rss - memory.shared)


def footprints(cluster: LocalCluster, names: Iterable[str]) -> dict[str, Footprint]:
    """By process; raises LaunchError for one that does not run."""
    try:
        return {name: footprint_of(cluster.process(name).pid) for name in names}
    except psutil.Error as error:  # it has just ended, and its supervisor does not know yet
        raise LaunchError(f"a process is not there: {error}") from None


def grown(before: Mapping[str, Footprint], now: Mapping[str, Footprint]) -> list[str]:
    """Who holds more than before, and of what."""
    return [f"{name}: {what}" for name, one in now.items() for what in one.exceeds(before[name])]


async def left_over(bus: Bus, instances: Iterable[str]) -> list[str]:
    """What is still held although nobody asks anything; raises ServiceError."""
    state, index = await asyncio.gather(
        bus.request(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=ASK_TIMEOUT_S),
        bus.request(subjects.INDEX_STATS, Empty(), IndexStats, timeout_s=ASK_TIMEOUT_S),
    )
    ready = {instance.id for instance in state.instances if instance.state == "ready"}
    left = [f"{name} is not ready" for name in sorted(set(instances) - ready)]
    for instance in state.instances:
        held = instance.capacity_tokens - instance.free_tokens
        work = instance.queued_requests + instance.running + instance.queued_tokens + held
        left += [f"{instance.id} has work"] * bool(work)
    for node in state.nodes:
        taken = node.slots_writing + node.slots_private + node.slots_leased
        left += [f"{node.id} holds {taken} slots"] * bool(taken)
        known = index.nodes.get(node.id, 0)
        if node.ssd_state == "none" and known != node.slots_sealed:
            left.append(
                f"the index knows {known} blocks of {node.id}, which has {node.slots_sealed}"
            )
    live = {node.id for node in state.nodes}
    left += [f"the index names {node}, which is gone" for node in index.nodes if node not in live]
    return left + [f"{one.id} has work" for one in state.gateways if one.in_flight]
