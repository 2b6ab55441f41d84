"""What each node still has to send and receive, as far as this conductor knows.

A node's report says what was in flight then; fetches that were placed since are added, and all of
it runs off at the speed of the link.
"""

from collections.abc import Iterator
from dataclasses import dataclass

FORGET_AFTER_S = 60.0
MAX_NODES = 16_384


@dataclass(slots=True)
class _Backlog:
    num_bytes: float
    at_s: float


class NodeLoads:
    def __init__(self) -> None:
        self._backlogs: dict[tuple[str, str], _Backlog] = {}

    def report(self, node: tuple[str, str], bytes_in_flight: int, now_s: float) -> None:
        self._set(node, float(bytes_in_flight), now_s)

    def add(
        self, node: tuple[str, str], num_bytes: float, now_s: float, bytes_per_s: float
    ) -> None:
        self._set(node, self.backlog_bytes(node, now_s, bytes_per_s) + num_bytes, now_s)

    def backlog_bytes(self, node: tuple[str, str], now_s: float, bytes_per_s: float) -> float:
        known = self._backlogs.get(node)
        if known is None:
            return 0.0
        return max(0.0, known.num_bytes - (now_s - known.at_s) * bytes_per_s)

    def _set(self, node: tuple[str, str], num_bytes: float, now_s: float) -> None:
        self._backlogs.pop(node, None)  # the one heard longest ago stays first
        if num_bytes > 0:
            self._backlogs[node] = _Backlog(num_bytes, now_s)
        while self._backlogs:
            oldest = next(iter(self._backlogs))
            is_old = now_s - self._backlogs[oldest].at_s > FORGET_AFTER_S
            if not is_old and len(self._backlogs) <= MAX_NODES:
                break
            del self._backlogs[oldest]

    def busy(self, now_s: float, bytes_per_s: float) -> Iterator[tuple[tuple[str, str], float]]:
        """Nodes with something left to move."""
        for node in self._backlogs:
            num_bytes = self.backlog_bytes(node, now_s, bytes_per_s)
            if num_bytes > 0:
                yield node, num_bytes
