"""What `moonpool status` calls a problem."""

from scripts.cli.status import ROLES, problems_of
from shared.messages.conductor import ModelInfo, StateReply
from shared.messages.micro import MicroPing
from shared.messages.outcomes import KeptOutParty

MODEL = ModelInfo(
    name="m",
    root=b"r",
    kv_format={},
    block_tokens=16,
    grid_tokens=16,
    context_tokens=16,
    block_bytes=1,
)
SICK = KeptOutParty(
    service="transfer",
    id="node-1",
    incarnation="1",
    reason="3 of 3 failed, 0% elsewhere",
    state="out",
    since_s=2.0,
    left_s=3.0,
    num_times=1,
)


def processes() -> list[MicroPing]:
    return [
        MicroPing(name=f"moonpool-{role}", id="x", version="1", metadata={"role": role, "id": "x"})
        for role in ROLES
    ]


def test_who_is_quarantined_is_a_problem_with_its_reason() -> None:
    well = StateReply(conductor="c", models=[MODEL])
    assert problems_of(processes(), well) == []
    sick = well.model_copy(update={"quarantined": [SICK]})
    assert problems_of(processes(), sick) == [
        "node-1 (transfer) is quarantined: 3 of 3 failed, 0% elsewhere"
    ]
