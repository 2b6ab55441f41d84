"""What the hook after each group of layers costs a prefill, on a machine whose speed changes.

A chunk is computed twice, and in each of the two every second hook is called, not the same ones. So
what is compared lies some tens of milliseconds apart, and it makes no difference that the machine
is faster in one of the two: it adds as much to one half of the groups as it takes from the other.
"""

import asyncio
import math
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shared.worker.grid import NUM_LAYER_GROUPS, layer_groups

NORMAL_PER_MAD, MEDIAN_PER_MEAN = 1.4826, 1.2533
"""Of a normal distribution: the standard deviation in median absolute deviations, and the standard
error of the median in those of the mean."""


@dataclass(slots=True)
class WokenLoop:
    """An event loop in a thread, as a worker has one beside its computing thread."""

    loop: asyncio.AbstractEventLoop
    groups: dict[int, tuple[int, int]]
    layers: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    """Of its thread, once it has ended."""

    def on_layer(self, layer: int) -> None:
        """What a worker's hook does in the computing thread: wakes the loop."""
        self.loop.call_soon_threadsafe(self.layers.append, layer)


@contextmanager
def woken_loop(num_layers: int) -> Iterator[WokenLoop]:
    woken = WokenLoop(asyncio.new_event_loop(), layer_groups(num_layers, NUM_LAYER_GROUPS))

    def run() -> None:
        began_s = time.thread_time()
        woken.loop.run_forever()
        woken.cpu_s = time.thread_time() - began_s

    thread = threading.Thread(target=run, name="hook")
    thread.start()
    try:
        yield woken
    finally:
        woken.loop.call_soon_threadsafe(woken.loop.stop)
        thread.join()
        woken.loop.close()


@dataclass(slots=True)
class HookClock:
    """Calls every second hook of a chunk, from the first or (`turn` 1) from the second one on."""

    woken: WokenLoop
    turn: int
    inner_s: float = 0.0
    """Of the hooks, in the computing thread."""
    seconds: list[float] = field(default_factory=list)
    """From one hook to the next one: what the first of them costs is in there."""
    whole_s: float = 0.0
    _began_s: float = 0.0
    _last_s: float = 0.0
    _num_ended: int = 0

    def begin(self) -> None:
        self._began_s = time.perf_counter()

    def on_layer(self, layer: int) -> None:
        if layer not in self.woken.groups:
            return
        now_s = time.perf_counter()
        if self._num_ended:
            self.seconds.append(now_s - self._last_s)
        self._last_s = now_s
        if self._num_ended % 2 == self.turn:
            self.woken.on_layer(layer)
            self.inner_s += time.perf_counter() - now_s
        self._num_ended += 1

    def end(self) -> None:
        self.whole_s = time.perf_counter() - self._began_s


def cost_of(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How much longer a hook makes what follows it, as a share, from the `seconds` of the clocks of
    turn 0 and 1. None: there are too few groups to tell it from a change of the machine's speed."""
    if len(first) < 2:
        return None
    weights = [1.0] * len(first)
    if len(first) % 2:
        weights[0] = weights[-1] = 0.5
    signed = [
        weight * (-1) ** number * math.log(hooked / bare)
        for number, (weight, hooked, bare) in enumerate(zip(weights, first, second, strict=True))
    ]
    return math.expm1(sum(signed) / sum(weights))


def median_with_error(values: Sequence[float]) -> tuple[float, float]:
    """The median, and what it may be off by: two standard errors, outliers left aside."""
    middle = statistics.median(values)
    deviation = NORMAL_PER_MAD * statistics.median(abs(value - middle) for value in values)
    return middle, 2 * MEDIAN_PER_MEAN * deviation / math.sqrt(len(values))
