"""The policy learns which kind of request comes back, and keeps its blocks."""

import pytest

from shared.kv.eviction.predicted_reuse import REMEMBERED, PredictedReuseEviction
from shared.simulator.prefix_pool import PrefixPool


def hits_of_short_prompts(policy: PredictedReuseEviction) -> int:
    """Prompts of 4 blocks come back every third request, prompts of 32 never; room for 100."""
    pool = PrefixPool(100, policy)
    hits = 0
    for number in range(600):
        if number % 3 == 0:
            first = 1_000_000 + number % 12 * 10
            hits += pool.use(range(first, first + 4))
        else:
            pool.use(range(number * 100, number * 100 + 32))
    return hits


def test_what_comes_back_is_kept_although_others_were_used_later() -> None:
    lru_like = PredictedReuseEviction(prior_blocks=1e12)
    learning = PredictedReuseEviction(horizon_uses=2_000, prior_blocks=50)
    assert hits_of_short_prompts(lru_like) == 0
    assert hits_of_short_prompts(learning) > 600


def test_a_block_that_is_promising_does_not_stay_for_ever() -> None:
    policy = PredictedReuseEviction(horizon_uses=200, prior_blocks=20)
    pool = PrefixPool(40, policy)
    for _ in range(50):
        pool.use(range(4))
    for number in range(400):
        pool.use(range(1_000 + number * 10, 1_000 + number * 10 + 8))
    assert pool.num_leading(range(4)) == 0


def test_memory_of_gone_blocks_is_bounded() -> None:
    policy = PredictedReuseEviction(horizon_uses=100)
    pool = PrefixPool(20, policy)
    for number in range(500):
        pool.use(range(number * 10, number * 10 + 5))
    assert len(policy._gone) <= REMEMBERED * 20
    assert len(policy._known) <= (REMEMBERED + 1) * 20
    assert len(policy._open) <= 101 + 5


def test_a_horizon_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="horizon_uses: must be at least 1, is 0"):
        PredictedReuseEviction(horizon_uses=0)
