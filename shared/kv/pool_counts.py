"""How many slots of a pool are in which state, at one time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolCounts:
    total: int
    free: int
    writing: int
    private: int
    sealed: int
    doomed: int
    held: int
    evictable: int
    evictions_total: int
    quarantined_total: int
