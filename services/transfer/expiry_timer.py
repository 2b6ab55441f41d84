"""Ends leases when their time is over: one timer for a whole table, set for the next of them."""

import asyncio
from collections.abc import Callable

from shared.kv.lease import Lease, LeaseTable
from shared.runtime.clock import monotonic_s


class ExpiryTimer:
    """Calls `end` on the loop with each lease of the table that is over, once."""

    def __init__(self, leases: LeaseTable, end: Callable[[Lease], None]) -> None:
        self._leases = leases
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self.expired_total = 0

    def set(self) -> None:
        """A lease was granted or renewed: the next one to end may be another."""
        self.stop()
        deadline_s = self._leases.next_deadline_s()
        if deadline_s is not None:
            delay_s = max(deadline_s - monotonic_s(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        for lease in self._leases.expire(monotonic_s()):
            self.expired_total += 1
            self._end(lease)
        self.set()
