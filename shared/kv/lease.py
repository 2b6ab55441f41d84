"""Leases of other nodes: held until released or until their time is over. Holds no slots itself.

Time is the granter's clock; whoever reads stops at 80 % of the ttl that was granted.
"""

import heapq
from dataclasses import dataclass

HOLDER_SHARE = 0.8
"""The part of a ttl that the holder uses: the rest covers the way of the answer and clock drift."""


@dataclass(frozen=True, slots=True)
class Lease:
    lease_id: str
    holder: str
    ends_s: float


class LeaseTable:
    """Leases by id and by end."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease_id: str) -> Lease | None:
        return self._leases.get(lease_id)

    def grant(self, lease_id: str, holder: str, now_s: float, ttl_s: float) -> Lease:
        if lease_id in self._leases:
            raise ValueError(f"lease_id: {lease_id} is granted already")
        lease = Lease(lease_id, holder, now_s + ttl_s)
        self._leases[lease_id] = lease
        if len(self._ends) > 64 + 2 * len(self._leases):
            self._ends = [(each.ends_s, each.lease_id) for each in self._leases.values()]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, (lease.ends_s, lease_id))
        return lease

    def release(self, lease_id: str) -> Lease | None:
        """The lease that ended, None when it had ended before."""
        return self._leases.pop(lease_id, None)

    def expire(self, now_s: float) -> list[Lease]:
        """Ends and returns the leases whose time is over, the oldest end first."""
        expired: list[Lease] = []
        while self._ends and self._ends[0][0] <= now_s:
            ends_s, lease_id = heapq.heappop(self._ends)
            lease = self._leases.get(lease_id)
            if lease is not None and lease.ends_s == ends_s:
                del self._leases[lease_id]
                expired.append(lease)
        return expired

    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do next."""
        while self._ends:
            ends_s, lease_id = self._ends[0]
            lease = self._leases.get(lease_id)
            if lease is not None and lease.ends_s == ends_s:
                return ends_s
            heapq.heappop(self._ends)
        return None
