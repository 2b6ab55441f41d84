"""The hit-rate laboratory: share of a trace's prompt tokens that one pool of a size serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.kv.eviction.base import EvictionPolicy
from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.simulator.belady import BeladyEviction
from shared.simulator.prefix_pool import PrefixPool, key_of
from shared.simulator.trace import BLOCK_TOKENS, Mode, TraceRequest

BELADY = "belady"
LAB_POLICIES = (*EVICTION_POLICIES, BELADY)


@dataclass(frozen=True, slots=True)
class HitRate:
    """Hit tokens over prompt tokens, whole and by half of the requests."""

    policy: str
    size_tokens: int
    hit: float
    first_half: float
    second_half: float


def measure(
    requests: Sequence[TraceRequest],
    policy_name: str,
    size_tokens: int,
    mode: Mode,
    make: Callable[[], EvictionPolicy] | None = None,
) -> HitRate:
    """`make` puts another policy, or other parameters, under the name."""
    policy = make() if make is not None else make_policy(policy_name, requests, mode)
    pool = PrefixPool(size_tokens // BLOCK_TOKENS, policy)
    hits, totals = [0, 0], [0, 0]
    middle = len(requests) // 2
    for number, request in enumerate(requests):
        half = number >= middle
        hits[half] += request.hit_tokens(pool.use(request.blocks(mode)))
        totals[half] += request.num_tokens
    first, second = (hit / max(total, 1) for hit, total in zip(hits, totals, strict=True))
    return HitRate(policy_name, size_tokens, sum(hits) / sum(totals), first, second)


def make_policy(name: str, requests: Sequence[TraceRequest], mode: Mode) -> EvictionPolicy:
    if name == BELADY:
        return BeladyEviction([key_of(b) for b in request.blocks(mode)] for request in requests)
    if name not in EVICTION_POLICIES:
        raise ValueError(f"policy: {name!r} is none of {', '.join(LAB_POLICIES)}")
    return EVICTION_POLICIES[name]()
