"""Policies by name: the one place to add a new one."""

from collections.abc import Callable

from shared.scheduling.policies.base import PlacementPolicy
from shared.scheduling.policies.dynamo_cost import DynamoCost
from shared.scheduling.policies.global_cache_aware import GlobalCacheAware
from shared.scheduling.policies.least_loaded import LeastLoaded
from shared.scheduling.policies.local_cache_aware import LocalCacheAware
from shared.scheduling.policies.moonpool import Moonpool
from shared.scheduling.policies.random_choice import RandomChoice
from shared.scheduling.policies.round_robin import RoundRobin

DEFAULT_POLICY = "moonpool"
POLICIES: dict[str, Callable[[], PlacementPolicy]] = {
    "moonpool": Moonpool,
    "global_cache_aware": GlobalCacheAware,
    "local_cache_aware": LocalCacheAware,
    "dynamo_cost": DynamoCost,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "random": RandomChoice,
}
