"""What each node still has to send and receive, as far as this conductor knows.

A node's report says what was in flight then; fetches that were placed since are added, and all of
it runs off at the speed of the link. Shown in the columns of the instances attached to a node.
"""

from shared.scheduling.instance_table import InstanceTable

FORGET_AFTER_S = 60.0
MAX_NODES = 16_384


class NodeLoads:
    def __init__(self, table: InstanceTable) -> None:
        self._table = table
        self._backlogs: dict[tuple[str, str], tuple[float, float]] = {}
        """Bytes, and when there were so many; the one heard longest ago first."""

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
        num_bytes, at_s = known
        return max(0.0, num_bytes - (now_s - at_s) * bytes_per_s)

    def show(self, node: tuple[str, str]) -> None:
        """To instances that are attached to it only now."""
        num_bytes, at_s = self._backlogs.get(node, (0.0, 0.0))
        self._table.write_link(node, num_bytes, at_s)

    def _set(self, node: tuple[str, str], num_bytes: float, now_s: float) -> None:
        self._backlogs.pop(node, None)  # the one heard longest ago stays first
        if num_bytes > 0:
            self._backlogs[node] = num_bytes, now_s
        self._table.write_link(node, num_bytes, now_s)
        while self._backlogs:
            oldest = next(iter(self._backlogs))
            is_old = now_s - self._backlogs[oldest][1] > FORGET_AFTER_S
            if not is_old and len(self._backlogs) <= MAX_NODES:
                break
            del self._backlogs[oldest]
            self._table.write_link(oldest, 0.0, now_s)
