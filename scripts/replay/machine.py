"""Whether the machine kept its speed during a replay: a fixed matrix product, timed now and then.

Times of a cluster say nothing of its predictions where the machine beneath was shared with others.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import numpy as np

SIZE = 320
REPEATS = 5
BETWEEN_S = 1.0
IDLE_LOOKS = 40
BETWEEN_IDLE_S = 0.05
WINDOW_LOOKS = 20
"""One look lasts some 25 ms. Where another thread shares the core it is often 1.4 times the one
before, though the mean of twenty stays the same; a prefill of seconds feels the mean."""
MIN_LOOKS = 10
"""Fewer are one window."""
ALLOWED = 0.15


@dataclass(slots=True)
class MachineCheck:
    """Looks at the product's time: CPU time while the cluster works, which waiting for a core that
    its own workers hold does not lengthen; and the wall clock before and after."""

    before_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    _matrix: np.ndarray[Any, np.dtype[np.float32]] = field(
        default_factory=lambda: np.random.default_rng(0).random((SIZE, SIZE), dtype=np.float32)
    )

    def look_idle(self, looks_s: list[float]) -> None:
        """Into `before_s` or `after_s`, while nothing else should run; takes some seconds."""
        for _ in range(IDLE_LOOKS):
            looks_s.append(self._look(time.perf_counter))
            time.sleep(BETWEEN_IDLE_S)

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
        """How much slower the slowest window was than the fastest: before to after, and window to
        window of the run; the larger."""
        idle_s = [mean(looks_s) for looks_s in (self.before_s, self.after_s) if looks_s]
        busy_s = [mean(looks_s) for looks_s in _windows(self.busy_s)]
        return max((max(s) / min(s) - 1.0 for s in (idle_s, busy_s) if s), default=0.0)

    @property
    def looks_moved(self) -> float:
        """The same of single looks: how unsteady it was from moment to moment."""
        kinds = (self.before_s + self.after_s, self.busy_s)
        return max((max(s) / min(s) - 1.0 for s in kinds if s), default=0.0)

    @property
    def is_steady(self) -> bool:
        return self.moved < ALLOWED

    def summary(self) -> dict[str, Any]:
        """`look_s` (means, seconds) lets runs be compared with each other."""
        kinds = {"before": self.before_s, "busy": self.busy_s, "after": self.after_s}
        return {
            "moved": self.moved,
            "is_steady": self.is_steady,
            "looks_moved": self.looks_moved,
            "look_s": {name: mean(looks_s) for name, looks_s in kinds.items() if looks_s},
        }


def _windows(looks_s: Sequence[float]) -> list[Sequence[float]]:
    """Of WINDOW_LOOKS each and a few more; the halves of a short run."""
    num_looks = len(looks_s)
    num = max(num_looks // WINDOW_LOOKS, 2 if num_looks >= MIN_LOOKS else 1)
    ends = [number * num_looks // num for number in range(num + 1)]
    return [looks_s[a:b] for a, b in itertools.pairwise(ends) if b > a]
