"""What `moonpool status` calls a problem."""

from scripts.cli.status import ROLES, problems_of
from shared.messages.conductor import ModelInfo, StateReply
from shared.messages.index import IndexStats
from shared.messages.micro import MicroPing
from shared.messages.outcomes import KeptOutParty
from shared.messages.reports import GatewayReport

PROCESSES = [
    MicroPing(name=f"moonpool-{role}", id="1", metadata={"role": role, "id": f"{role}-1"})
    for role in ROLES
]
MODEL = ModelInfo(
    name="m", root=b"", kv_format={}, block_tokens=1, grid_tokens=1, context_tokens=1, block_bytes=1
)
STATE = StateReply(conductor="c", models=[MODEL])
INDEX = IndexStats(index="cache-index-1", index_epoch="e")


def test_a_whole_cluster_has_none() -> None:
    assert problems_of(PROCESSES, STATE, [INDEX]) == []


def test_who_is_missing_or_not_ready_is_named() -> None:
    gateway = GatewayReport(id="g1", incarnation="i", state="draining")
    state = STATE.model_copy(update={"gateways": [gateway], "models": []})
    assert problems_of(PROCESSES[1:], state, [INDEX]) == [
        "no gateway answers",
        "g1 is draining",
        "no model is served",
    ]


def test_an_index_without_redis_and_a_conductor_that_says_nothing_are_problems() -> None:
    away = INDEX.model_copy(update={"is_redis_up": False})
    assert problems_of(PROCESSES, None, [away, "cache-index-2"]) == [
        "cache-index-1 cannot reach Redis",
        "cache-index-2 does not say how it is",
        "no conductor says what it sees",
    ]


def test_who_is_quarantined_is_a_problem_with_its_reason() -> None:
    sick = KeptOutParty(
        service="transfer",
        id="node-1",
        incarnation="1",
        reason="3 of 3 failed, 0% elsewhere",
        state="out",
        since_s=2.0,
        left_s=3.0,
        num_times=1,
    )
    assert problems_of(PROCESSES, STATE.model_copy(update={"quarantined": [sick]}), [INDEX]) == [
        "node-1 (transfer) is quarantined: 3 of 3 failed, 0% elsewhere"
    ]
