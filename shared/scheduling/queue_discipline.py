"""PURE: whose prompt computes its next chunk at a prefill instance, chosen anew at each chunk.

`fifo` is the paper's. `shortest_first` takes the least predicted remaining work, less what ageing
gives for the time waited, and only as long as nobody ahead in arrival order, who would still meet
its TTFT objective in FIFO order, comes to miss it for that. Also sums a queue up by size, so that a
conductor can tell how long a newcomer of some size would wait. Never measures or computes anything.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

DisciplineName = Literal["fifo", "shortest_first"]
DEFAULT_AGEING = 0.1
"""Seconds of work that a second of waiting makes up for."""

SIZE_EDGES_S = tuple(0.01 * 2 ** (step / 2) for step in range(24))
"""Between the size classes of remaining work; 10 ms to 29 s, two classes an octave."""
NUM_SIZES = len(SIZE_EDGES_S) + 1


@dataclass(slots=True)
class Waiting:
    """A prompt that waits or is in the middle of its chunks."""

    handle: str
    remaining_s: float
    """Predicted time of what is still to be computed."""
    arrived_s: float
    due_s: float | None = None
    """When its TTFT objective ends."""
    is_loaded: bool = True
    """Its prefix is there: it could compute now."""
    has_started: bool = False
    in_chunk_s: float = 0.0
    """Of `remaining_s`, what the chunk that computes now still takes: nobody can stop that."""


@dataclass(frozen=True, slots=True)
class QueueProfile:
    """Work and prompts of a queue by size class: what a newcomer waits behind, or delays."""

    work_s: tuple[float, ...]
    prompts: tuple[float, ...]


class QueueDiscipline(Protocol):
    name: DisciplineName

    def choose(self, queue: Sequence[Waiting], now_s: float, chunk_s: float) -> Waiting | None:
        """Who computes next; `queue` is in order of arrival, a chunk takes up to `chunk_s`."""

    def wait_s(self, queue: Sequence[Waiting], work_s: float, now_s: float) -> float:
        """Until a prompt of so much work that comes now starts, if nobody comes after it."""

    def profile(self, queue: Sequence[Waiting], now_s: float) -> QueueProfile:
        """By the size that each counts as against one that comes now; a running chunk as none."""


class Fifo:
    """First come, first served among those that are loaded; who has started goes on."""

    name: DisciplineName = "fifo"

    def choose(self, queue: Sequence[Waiting], now_s: float, chunk_s: float) -> Waiting | None:
        started = next((one for one in queue if one.has_started and one.is_loaded), None)
        return started or next((one for one in queue if one.is_loaded), None)

    def wait_s(self, queue: Sequence[Waiting], work_s: float, now_s: float) -> float:
        return sum(one.remaining_s for one in queue)

    def profile(self, queue: Sequence[Waiting], now_s: float) -> QueueProfile:
        """All of them are ahead of a newcomer: the smallest class."""
        rest = (0.0,) * (NUM_SIZES - 1)
        return QueueProfile((sum(one.remaining_s for one in queue), *rest), (len(queue), *rest))


class ShortestFirst:
    name: DisciplineName = "shortest_first"

    def __init__(self, ageing: float = DEFAULT_AGEING) -> None:
        if ageing < 0:
            raise ValueError(f"ageing: must not be negative, is {ageing}")
        self._ageing = ageing

    def size_s(self, one: Waiting, now_s: float) -> float:
        """The work that it counts as. A newcomer counts as all of its work."""
        return one.remaining_s - self._ageing * (now_s - one.arrived_s)

    def choose(self, queue: Sequence[Waiting], now_s: float, chunk_s: float) -> Waiting | None:
        allowed = queue[: free_to_choose(queue, now_s, chunk_s)]
        loaded = [one for one in allowed if one.is_loaded]
        # Nobody who must not wait can compute yet: idling would help none of them.
        loaded = loaded or [one for one in queue if one.is_loaded]
        return min(loaded, key=lambda one: (self.size_s(one, now_s), one.arrived_s), default=None)

    def wait_s(self, queue: Sequence[Waiting], work_s: float, now_s: float) -> float:
        return sum(
            one.remaining_s if self.size_s(one, now_s) <= work_s else one.in_chunk_s
            for one in queue
        )

    def profile(self, queue: Sequence[Waiting], now_s: float) -> QueueProfile:
        work_s, prompts = [0.0] * NUM_SIZES, [0.0] * NUM_SIZES
        for one in queue:
            size = size_class(self.size_s(one, now_s))
            work_s[0] += one.in_chunk_s
            work_s[size] += one.remaining_s - one.in_chunk_s
            prompts[size] += 1
        return QueueProfile(tuple(work_s), tuple(prompts))


def free_to_choose(queue: Sequence[Waiting], now_s: float, chunk_s: float) -> int:
    """How many from the front may compute a chunk so that nobody misses its objective for it.

    A prompt's FIFO end is when it would be done in order of arrival from now on. A chunk of one
    behind it moves that end by the chunk; one ahead of it or its own does not. So up to the first
    whose end is in time but not by a chunk, the choice is free, and all ends in time stay in time.
    """
    end_s = now_s
    for position, one in enumerate(queue, start=1):
        end_s += one.remaining_s
        if one.due_s is not None and end_s <= one.due_s < end_s + chunk_s:
            return position
    return len(queue)


def size_class(work_s: float) -> int:
    return bisect_right(SIZE_EDGES_S, work_s)


def make_discipline(name: DisciplineName, ageing: float = DEFAULT_AGEING) -> QueueDiscipline:
    return Fifo() if name == "fifo" else ShortestFirst(ageing)
