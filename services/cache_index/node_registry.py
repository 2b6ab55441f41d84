"""Which incarnation of each node is current and until when its lease runs. Pure: time is given.

Every cache-index has its own copy, fed by `NodeSeen`; no store is asked for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Change = Literal["new", "registered_again", "renewed", "stale"]


@dataclass(frozen=True, slots=True)
class NodeLease:
    """What one message says of a node."""

    node: str
    incarnation: str
    root: bytes
    registration: int
    index_epoch: str
    lease_s: float


@dataclass(slots=True)
class NodeEntry:
    lease: NodeLease
    lease_ends_s: float

    def is_live(self, now_s: float) -> bool:
        return now_s < self.lease_ends_s


class NodeRegistry:
    def __init__(self) -> None:
        self._entries: dict[str, NodeEntry] = {}

    def see(self, lease: NodeLease, now_s: float) -> Change:
        """Extend the lease; "stale": a later registration is known, nothing changed.

        Registrations of different index epochs cannot be ordered: the last heard counts.
        """
        entry = self._entries.get(lease.node)
        ends_s = now_s + lease.lease_s
        if entry is None or entry.lease.incarnation != lease.incarnation:
            if entry is not None and _is_earlier(lease, entry.lease):
                return "stale"
            self._entries[lease.node] = NodeEntry(lease, ends_s)
            return "new"
        is_same = (entry.lease.registration, entry.lease.index_epoch) == (
            lease.registration,
            lease.index_epoch,
        )
        if not is_same and _is_earlier(lease, entry.lease):
            return "stale"
        entry.lease = lease
        entry.lease_ends_s = max(entry.lease_ends_s, ends_s)
        return "renewed" if is_same else "registered_again"

    def get(self, node: str) -> NodeEntry | None:
        return self._entries.get(node)

    def live(self, now_s: float) -> list[NodeEntry]:
        return [entry for entry in self._entries.values() if entry.is_live(now_s)]

    def silent_for(self, span_s: float, now_s: float) -> Iterator[NodeEntry]:
        """Entries whose lease ended at least `span_s` ago."""
        return (e for e in list(self._entries.values()) if now_s >= e.lease_ends_s + span_s)

    def forget(self, node: str) -> None:
        self._entries.pop(node, None)


def _is_earlier(lease: NodeLease, known: NodeLease) -> bool:
    return lease.index_epoch == known.index_epoch and lease.registration < known.registration
