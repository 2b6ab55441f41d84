"""Whether the machine kept its speed during a replay: a fixed matrix product, timed now and then.

Times of a cluster say nothing of its predictions where the machine beneath was shared with others.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

SIZE = 320
REPEATS = 5
BETWEEN_S = 2.0
ALLOWED = 0.15


@dataclass(slots=True)
class MachineCheck:
    """Medians of the product's time: CPU time while the cluster works, which waiting for a core
    that its own workers hold does not lengthen; and the wall clock before and after."""

    idle_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    _matrix: np.ndarray[Any, np.dtype[np.float32]] = field(
        default_factory=lambda: np.random.default_rng(0).random((SIZE, SIZE), dtype=np.float32)
    )

    def look_idle(self) -> None:
        """While nothing else should run."""
        self.idle_s.append(self._look(time.perf_counter))

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(BETWEEN_S)
            self.busy_s.append(await asyncio.to_thread(self._look, time.thread_time))

    def _look(self, clock: Callable[[], float]) -> float:
        self._run(clock)  # what was cold is not the machine's speed
        return median(self._run(clock) for _ in range(REPEATS))

    def _run(self, clock: Callable[[], float]) -> float:
        began_s = clock()
        # Not by BLAS: its threads would not be in this one's time.
        np.einsum("ij,jk->ik", self._matrix, self._matrix)
        return clock() - began_s

    @property
    def moved(self) -> float:
        """How much slower the slowest was than the fastest, of each kind; the larger."""
        return max(
            (max(times) / min(times) - 1.0 for times in (self.idle_s, self.busy_s) if times),
            default=0.0,
        )

    @property
    def is_steady(self) -> bool:
        return self.moved < ALLOWED
