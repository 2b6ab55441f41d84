"""What /v1/explain says of a conductor's answer."""

from typing import Any

from services.gateway.job import Job
from services.gateway.openapi_answers import ANSWERS
from services.gateway.tools_api import explanation
from shared.messages.bill import Times
from shared.messages.common import FetchSource, InstanceRef, NodeRef, Sampling
from shared.messages.conductor import Candidate, Placement, PlaceReply

P1, P2, D1 = (InstanceRef(id=name, incarnation="i", node="n1") for name in ("p1", "p2", "d1"))
TIMES = Times(compute_s=0.2, overhead_s=0.02, ttft_s=0.22, handoff_s=0.01, tbt_s=0.03)
JOB = Job(
    request_id="r",
    client_id="c",
    model="m",
    packed_tokens=b"",
    num_tokens=900,
    chain=bytes(3 * 16),
    sampling=Sampling(max_tokens=5),
    cache="on",
    prefill=None,
    decode=None,
    received_s=0.0,
    deadline_s=1.0,
)


def told(decode: InstanceRef | None = D1) -> list[dict[str, Any]]:
    """The candidates: a winner that fetches two blocks beside one of its own, and a loser."""
    source = FetchSource(node=NodeRef(id="n2", incarnation="i"), num_blocks=3)
    winner = Placement(
        prefill=P1,
        decode=decode,
        local_blocks=1,
        source=source,
        local_tokens=256,
        remote_tokens=512,
        predicted=TIMES,
        cost=0.25,
        policy="moonpool",
    )
    loser = Candidate(
        prefill=P2,
        local_blocks=0,
        remote_blocks=0,
        predicted=Times(compute_s=0.9, overhead_s=0.02, ttft_s=0.92),
        cost=0.9,
        reason="slower",
    )
    found: list[dict[str, Any]] = explanation(JOB, PlaceReply(placement=winner, losers=[loser]))[
        "candidates"
    ]
    return found


def test_a_winner_has_all_that_was_predicted_and_fetches_what_is_not_here() -> None:
    winner, _ = told()
    assert (winner["local_blocks"], winner["remote_blocks"]) == (1, 2)
    assert (winner["local_tokens"], winner["remote_tokens"]) == (256, 512)
    assert winner["cost"] == 0.25
    assert winner["predicted"] == {
        "queue_s": 0.0,
        "load_s": 0.0,
        "compute_s": 0.2,
        "overhead_s": 0.02,
        "ttft_s": 0.22,
        "handoff_s": 0.01,
        "tbt_s": 0.03,
        "tbt_scale": 1.0,
    }


def test_what_nobody_predicts_is_null_not_zero() -> None:
    _, loser = told()
    before = {"queue_s": 0.0, "load_s": 0.0, "compute_s": 0.9, "overhead_s": 0.02, "ttft_s": 0.92}
    after = {"handoff_s": None, "tbt_s": None, "tbt_scale": None}
    assert loser["predicted"] == before | after
    alone, _ = told(decode=None)
    assert alone["predicted"]["tbt_s"] is None


def test_the_document_has_every_field_of_a_candidate() -> None:
    schema = ANSWERS["Explanation"]["properties"]["candidates"]["items"]
    for one in told():
        assert sorted(one) == schema["required"]
        assert sorted(one["predicted"]) == schema["properties"]["predicted"]["required"]
