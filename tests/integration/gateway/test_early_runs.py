"""A gateway whose runs go with the question for a place: who counts, and what is never heard of."""

import asyncio
from typing import Any

import pytest

from services.gateway import attempt_calls
from shared.messages.common import ErrorCode, ErrorInfo
from tests.integration.gateway.conftest import Rig
from tests.integration.gateway.test_request_faults import ask, check_answer
from tests.support.deadline import until

pytestmark = pytest.mark.integration


@pytest.fixture
def early(rig: Rig) -> Rig:
    rig.cluster.starts_early = True
    return rig


async def held(rig: Rig, asking: "asyncio.Future[Any]", num_runs: int = 1) -> None:
    """Tokens came while the place is not known."""
    prefills = [one for one in rig.cluster.instances if one.service == "prefill"]
    await until(lambda: sum(len(one.runs) for one in prefills) == num_runs, what="it runs")
    await rig.cluster.bus.flush()
    await rig.context.bus.flush()
    assert not asking.done()


async def test_tokens_wait_for_the_place_and_the_run_is_sent_once(early: Rig) -> None:
    cluster = early.cluster
    cluster.place_gate.clear()
    asking = asyncio.ensure_future(ask(early))
    await held(early, asking)
    cluster.place_gate.set()
    response = await asking
    check_answer(response, attempts=1)
    assert [len(cluster.get(name).runs) for name in ("p0", "p1", "d0")] == [1, 0, 1]
    real = response.json()["moonpool"]["bill"]["real"]
    assert (real["queue_s"], real["load_s"], real["compute_s"]) == (0.01, 0.02, 0.03)


@pytest.mark.parametrize("is_loser_failing", [True, False])
async def test_only_the_chosen_one_counts(early: Rig, is_loser_failing: bool) -> None:
    cluster = early.cluster
    cluster.asks_first = ["p1"]
    loser = cluster.get("p1")
    loser.own_answer = [*b"X"]
    if is_loser_failing:
        loser.error = ErrorInfo(code=ErrorCode.INTERNAL, message="broken", is_retryable=True)
    cluster.place_gate.clear()
    asking = asyncio.ensure_future(ask(early))
    await held(early, asking, num_runs=2)
    cluster.place_gate.set()
    check_answer(await asking, attempts=1)
    assert cluster.get("p0").cancels == []


async def test_a_loser_that_comes_late_is_not_heard(early: Rig) -> None:
    cluster = early.cluster
    cluster.asks_first = ["p1"]
    loser, decode = cluster.get("p1"), cluster.get("d0")
    loser.own_answer = [*b"X"]
    loser.open.clear()
    decode.open.clear()
    asking = asyncio.ensure_future(ask(early))
    await until(lambda: decode.runs, what="it is placed")
    loser.open.set()
    await cluster.bus.flush()
    decode.open.set()
    check_answer(await asking, attempts=1)


async def test_a_place_that_is_never_heard_of_is_asked_for_again_and_told_to_instances(
    early: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_calls, "PLACE_TIMEOUT_S", 0.3)
    early.cluster.num_lost_replies = 1
    asking = asyncio.ensure_future(ask(early))
    await until(lambda: early.cluster.places, what="it is asked for")
    monkeypatch.undo()  # the second question has all the time that a busy machine takes
    check_answer(await asking, attempts=1)
    first, second = early.cluster.places
    assert (first.ref.attempt, second.ref.attempt) == (0, 1)
    await until(
        lambda: early.cluster.lost_attempts == [first.ref.handle], what="the gateway says so"
    )


async def test_a_client_that_leaves_before_the_place_is_known_cancels_what_runs(
    early: Rig,
) -> None:
    cluster = early.cluster
    cluster.place_gate.clear()
    asking = asyncio.ensure_future(ask(early))
    await held(early, asking)
    asking.cancel()
    await until(lambda: early.service.num_in_flight == 0, what="the gateway noticed")
    cluster.place_gate.set()
    for name in ("p0", "d0"):
        instance = cluster.get(name)
        await until(lambda one=instance: one.cancels, what=f"{name} is told")  # type: ignore[misc]
    assert cluster.get("d0").runs == []


async def test_a_refusal_after_tokens_came_is_the_answer(early: Rig) -> None:
    """They were of a run that the conductor let go."""
    cluster = early.cluster
    cluster.place_gate.clear()
    asking = asyncio.ensure_future(ask(early))
    await held(early, asking)
    cluster.reply_refusal = ErrorInfo(code=ErrorCode.CONTEXT_EXCEEDED, message="too long")
    cluster.place_gate.set()
    response = await asking
    assert response.status_code == 400
    assert "too long" in response.text


async def test_an_explained_request_starts_nothing(early: Rig) -> None:
    body = {"model": "dummy:tiny", "messages": [{"role": "user", "content": "Say hello."}]}
    response = await early.http.post("/v1/explain", json=body)
    assert response.status_code == 200, response.text
    assert [question.run for question in early.cluster.places] == [b""]
    assert not any(one.runs for one in early.cluster.instances)
