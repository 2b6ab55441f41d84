"""Eviction policies by name: the one place to add a new one."""

from collections.abc import Callable

from shared.kv.eviction.base import EvictionPolicy
from shared.kv.eviction.decayed_frequency import DecayedFrequencyEviction
from shared.kv.eviction.lfu import LfuEviction
from shared.kv.eviction.lru import LruEviction
from shared.kv.eviction.predicted_reuse import PredictedReuseEviction
from shared.kv.eviction.s3_fifo import S3FifoEviction
from shared.kv.eviction.sieve import SieveEviction

EVICTION_POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LruEviction,
    "lfu": LfuEviction,
    "s3_fifo": S3FifoEviction,
    "sieve": SieveEviction,
    "decayed_frequency": DecayedFrequencyEviction,
    "predicted_reuse": PredictedReuseEviction,
}
DEFAULT_EVICTION = "predicted_reuse"
