"""When to free slots ahead of need, and how many. Decides only; frees nothing."""

from dataclasses import dataclass

from shared.kv.pool_counts import PoolCounts

BATCH = 64
"""Slots freed at one go: a few hundred microseconds."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Below `low` free slots, free until there are `high`."""

    low: int
    high: int

    @classmethod
    def of_shares(
        cls, low: float, high: float, num_slots: int, *, at_least: int = 0
    ) -> "Watermarks":
        """`at_least`: also a small pool frees so many ahead."""
        lowest = max(int(num_slots * low), min(at_least, num_slots))
        highest = max(int(num_slots * high), lowest + min(at_least, num_slots - lowest))
        return cls(lowest, highest)

    def is_below(self, counts: PoolCounts) -> bool:
        return counts.free < self.low

    def batch(self, counts: PoolCounts) -> int:
        """How many to free next; 0: enough are free, or nothing may go."""
        return max(0, min(self.high - counts.free, counts.evictable, BATCH))
