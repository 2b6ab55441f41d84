"""What each process of a cluster takes of a core while nobody asks anything."""

import asyncio
import os
from dataclasses import dataclass

import psutil

from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import ClusterOptions
from shared.runtime.clock import monotonic_s

SERVERS = ("nats", "redis")
SETTLE_S = 15.0
"""The start is over: prices are known, workers have attached, connections are made."""


@dataclass(frozen=True, slots=True)
class IdleFigures:
    """Shares of one core."""

    by_process: dict[str, float]
    launcher: float
    """The process that supervises them and measures; it is no service."""
    threads: int
    """Of all services together."""

    @property
    def total(self) -> float:
        return sum(self.by_process.values())


async def measure_idle(options: ClusterOptions, seconds: float) -> IdleFigures:
    """Of a cluster of its own, which nobody asks anything for so long."""
    async with LocalCluster(options) as cluster:
        await cluster.wait_ready()
        await asyncio.sleep(SETTLE_S)
        names = [*SERVERS, *(member.id for member in cluster.names.members)]
        processes = {name: psutil.Process(cluster.process(name).pid) for name in names}
        own = psutil.Process(os.getpid())
        started_s = monotonic_s()
        before = {name: _cpu_s(process) for name, process in processes.items()}
        own_before = _cpu_s(own)
        await asyncio.sleep(seconds)
        took_s = monotonic_s() - started_s
        shares = {
            name: (_cpu_s(process) - before[name]) / took_s for name, process in processes.items()
        }
        threads = sum(process.num_threads() for process in processes.values())
        return IdleFigures(shares, (_cpu_s(own) - own_before) / took_s, threads)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
