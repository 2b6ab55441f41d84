"""A plan as the simulator gets it: the cluster's blocks, with the same prefixes in common."""

from scripts.replay.beside import trace_of
from scripts.replay.plan import Plan, PlannedRequest
from shared.simulator.trace import BLOCK_TOKENS


def planned(num_tokens: int, *ids: int, block_tokens: int = 32) -> PlannedRequest:
    return PlannedRequest(0.0, num_tokens, 4, ids, block_tokens, "")


def num_common(plan: list[PlannedRequest], live_block: int) -> int:
    first, second = (one.block_ids for one in trace_of(plan_of(plan), live_block))
    return next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if len(set(pair)) > 1),
        min(len(first), len(second)),
    )


def plan_of(requests: list[PlannedRequest]) -> Plan:
    return Plan(tuple(requests), 0)


def test_blocks_are_shared_as_far_as_all_their_tokens_are():
    one = planned(600, *range(19))
    assert num_common([one, planned(600, *range(19))], 256) == 2
    other = planned(600, *range(15), *range(100, 104))  # alike up to token 480
    assert num_common([one, other], 256) == 1
    assert num_common([one, other], 64) == 7


def test_larger_blocks_of_the_plan_hold_several_of_the_cluster():
    one, other = planned(1_024, 0, 1, block_tokens=512), planned(1_024, 0, 2, block_tokens=512)
    assert num_common([one, other], 256) == 2


def test_a_block_keeps_its_share_of_the_prompt():
    (request,) = trace_of(plan_of([planned(300, *range(10))]), 256)
    assert len(request.block_ids) == 1
    assert request.num_tokens == BLOCK_TOKENS + round(44 * BLOCK_TOKENS / 256)


def test_a_prompts_own_tokens_are_shared_with_nobody():
    plan = plan_of([planned(600, *range(8)), planned(600, *range(8))])  # ids of 256 tokens only
    first, second = trace_of(plan, 256)
    assert first.block_ids[0] == second.block_ids[0]
    assert first.block_ids[1] != second.block_ids[1]
