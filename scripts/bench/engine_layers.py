"""How long each layer of a prefill takes, for differences that are small beside a whole prefill.

The speed of a shared machine changes from one second to the next, and stays low for whole rounds.
A layer lasts some milliseconds: among a few runs each has one that nothing disturbed, which no
whole prefill has.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class LayerClock:
    """`on_layer` notes when a layer's KV was there."""

    seconds: list[float] = field(default_factory=list)
    """Of all layers of all chunks, and of what follows the last layer of each."""
    _last_s: float = 0.0

    def begin(self) -> None:
        self._last_s = time.perf_counter()

    def on_layer(self, layer: int) -> None:
        del layer  # they come in order
        self._note()

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
