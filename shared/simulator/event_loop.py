"""Virtual time: calls in order of their time, then in the order they were asked for."""

import heapq
from collections.abc import Callable


class EventLoop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """What is past happens now."""
        self._count += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._count, call))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._heap:
            self.now_s, _, call = heapq.heappop(self._heap)
            call()
