"""The demo's plan and its verdicts."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest

import scripts.demo
from scripts.demo.client import Answer, Served
from scripts.demo.plan import PlanError, Step, plan
from scripts.demo.run import Row
from shared.messages.reports import InstanceReport

QUESTIONS = json.loads((Path(scripts.demo.__file__).parent / "questions.json").read_text())


def instance(
    service: Literal["prefill", "decode"], number: int, node: int, **changes: Any
) -> InstanceReport:
    fields: dict[str, Any] = {
        "service": service,
        "id": f"{service}-{number}",
        "incarnation": "i",
        "node": f"node-{node}",
        "node_incarnation": "n",
        "state": "ready",
        "model": "m",
        "root": b"",
        "kv_format": {},
        "block_tokens": 256,
        "grid_tokens": 256,
        "block_bytes": 1,
        "context_tokens": 8192,
        **changes,
    }
    return InstanceReport(**fields)


TWO_NODES = [
    instance("prefill", 2, 2),
    instance("decode", 1, 1),
    instance("prefill", 1, 1),
    instance("decode", 2, 2),
]


def test_the_plan_shows_local_and_remote_hits_and_a_decode_elsewhere() -> None:
    steps = plan(TWO_NODES, QUESTIONS)
    assert [(step.prefill, step.decode, step.cached_from) for step in steps] == [
        ("prefill-1", "decode-1", "none"),
        ("prefill-1", "decode-1", "local"),
        ("prefill-2", "decode-2", "remote"),
        ("prefill-2", "decode-1", "local"),
        ("", "", None),
    ]
    assert [step.must_move_bytes for step in steps] == [False, False, True, True, False]
    assert steps[-1].placement is None


def test_one_node_is_not_enough() -> None:
    lame = [*TWO_NODES[1:3], instance("prefill", 2, 2), instance("decode", 2, 2, state="draining")]
    with pytest.raises(PlanError, match="two nodes"):
        plan(lame, QUESTIONS)


SERVED = Served(
    prefill="prefill-2",
    decode="decode-2",
    cached_from="remote",
    bytes_moved=10,
    transfer_s=0.1,
    ttft_s=0.2,
    bill={},
)
HIT = Answer("x", [1, 2], 2500, 2304, SERVED)
COLD = Answer("x", [1, 2], 2500, 0, SERVED.model_copy(update={"cached_from": "none"}))
STEP = Step("remote", "?", "prefill-2", "decode-2", "remote", True)


def test_a_good_remote_hit_has_no_problems() -> None:
    row = Row(STEP, HIT, COLD)
    assert row.problems == []
    assert row.as_json()["equal_to_cold"] is True


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (dataclasses.replace(HIT, token_ids=[1, 3]), "differ"),
        (dataclasses.replace(HIT, token_ids=[1]), "differ"),
        (dataclasses.replace(HIT, cached_tokens=0), "yet 0 tokens"),
        (dataclasses.replace(HIT, served=SERVED.model_copy(update={"bytes_moved": 0})), "no bytes"),
        (
            dataclasses.replace(HIT, served=SERVED.model_copy(update={"cached_from": "local"})),
            "must be remote",
        ),
        (
            dataclasses.replace(HIT, served=SERVED.model_copy(update={"decode": "decode-1"})),
            "was asked of decode-2",
        ),
    ],
)
def test_what_is_not_as_it_must_be_is_found(answer: Answer, problem: str) -> None:
    assert any(problem in found for found in Row(STEP, answer, COLD).problems)


def test_a_reference_that_was_not_cold_is_no_reference() -> None:
    warm = dataclasses.replace(COLD, cached_tokens=256)
    assert any("cold run used the cache" in p for p in Row(STEP, HIT, warm).problems)
