"""How long each layer of a prefill takes, for differences that are small beside a whole prefill.

The speed of a shared machine changes from one second to the next by more than a hook costs, and
stays low for whole rounds. A layer lasts some milliseconds: among a few runs each has one that
nothing disturbed, which no whole prefill has.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shared.worker.grid import NUM_LAYER_GROUPS, layer_groups

OnLayer = Callable[[int], None]


@dataclass(slots=True)
class LayerClock:
    """`on_layer` notes when a layer's KV was there, then calls `inner`, if any."""

    inner: OnLayer | None = None
    inner_s: float = 0.0
    """Of the calls of `inner`, in the computing thread."""
    seconds: list[float] = field(default_factory=list)
    """Of all layers of all chunks, and of what follows the last layer of each."""
    _last_s: float = 0.0

    def begin(self) -> None:
        self._last_s = time.perf_counter()

    def on_layer(self, layer: int) -> None:
        self._note()
        if self.inner is not None:
            began_s = time.perf_counter()
            self.inner(layer)
            self.inner_s += time.perf_counter() - began_s

    def end(self) -> None:
        self._note()

    def _note(self) -> None:
        now_s = time.perf_counter()
        self.seconds.append(now_s - self._last_s)
        self._last_s = now_s


def least_s(runs: Sequence[Sequence[float]]) -> float:
    """The sum of each layer's least time in runs of the same work."""
    least: list[float] = [min(layer) for layer in zip(*runs, strict=True)]
    return sum(least)


@dataclass(slots=True)
class WokenLoop:
    """An event loop in a thread, as a worker has one beside its computing thread."""

    loop: asyncio.AbstractEventLoop
    groups: dict[int, tuple[int, int]]
    layers: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    """Of its thread, once it has ended."""

    def on_layer(self, layer: int) -> None:
        """What a worker's hook does in the computing thread: wakes the loop for a layer group."""
        if layer in self.groups:
            self.loop.call_soon_threadsafe(self.layers.append, layer)


@contextmanager
def woken_loop(num_layers: int) -> Iterator[WokenLoop]:
    woken = WokenLoop(asyncio.new_event_loop(), layer_groups(num_layers, NUM_LAYER_GROUPS))

    def run() -> None:
        woken.loop.run_forever()
        woken.cpu_s = time.thread_time()

    thread = threading.Thread(target=run, name="hook")
    thread.start()
    try:
        yield woken
    finally:
        woken.loop.call_soon_threadsafe(woken.loop.stop)
        thread.join()
        woken.loop.close()
