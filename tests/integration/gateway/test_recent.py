"""What a gateway keeps of requests that ended, and how it is read."""

import asyncio
from typing import Any

import pytest

from services.gateway import recent
from shared.messages import subjects
from shared.messages.common import ErrorCode, ErrorInfo, Targets
from shared.messages.conductor import Candidate
from shared.messages.recent import RecentReply, RecentRequest
from tests.integration.gateway.conftest import Rig, running_rig
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL, PREDICTED

pytestmark = pytest.mark.integration
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]}


async def ask(rig: Rig, **more: Any) -> Any:
    return await rig.http.post("/v1/chat/completions", json=BODY | more)


async def read(rig: Rig, **fields: Any) -> RecentReply:
    subject = subjects.gateway_recent(rig.context.id)
    return await rig.cluster.bus.request(subject, RecentRequest(**fields), RecentReply, timeout_s=5)


async def ended(rig: Rig, count: int) -> RecentReply:
    """Once so many requests have ended: the answer may be read before its end is noted."""

    async def look() -> RecentReply | None:
        reply = await read(rig)
        return reply if reply.newest >= count else None

    found = await until(look, what=f"{count} requests ended")
    assert found is not None
    return found


async def test_an_answered_request_has_its_bill_and_its_decision(rig: Rig) -> None:
    loser = Candidate(
        prefill=rig.cluster.get("p1").ref, local_blocks=2, remote_blocks=0, predicted=PREDICTED,
        reason="not best",
    )  # fmt: skip
    rig.cluster.losers = [loser]
    response = await rig.http.post(
        "/v1/chat/completions",
        json=BODY | {"user": "ann"},
        headers={"x-request-id": "<b>my id</b>".replace(" ", "_")},
    )
    assert response.status_code == 200
    [one] = (await ended(rig, 1)).requests
    assert (one.ending, one.client_id, one.user) == ("finished", "<b>my_id</b>", "ann")
    assert one.bill is not None
    assert one.bill.output_tokens == one.output_tokens == len(rig.cluster.answer)
    [decision] = one.decisions
    assert decision.placement is not None
    assert decision.placement.prefill.id == "p0"
    assert decision.losers == [loser]


async def test_a_refusal_says_why_with_both_sides_of_the_comparison(rig: Rig) -> None:
    rig.cluster.refusal = ErrorInfo(code=ErrorCode.OVERLOADED, message="too slow")
    rig.cluster.targets = Targets(predicted_ttft_s=2.0, allowed_ttft_s=1.0)
    assert (await ask(rig)).status_code == 429
    [one] = (await ended(rig, 1)).requests
    assert (one.ending, one.bill) == ("refused", None)
    assert one.error is not None
    assert one.error.message == "too slow"
    assert one.decisions[-1].refusal is not None
    assert one.decisions[-1].refusal.targets == rig.cluster.targets


async def test_a_request_that_ran_and_broke_has_failed(rig: Rig) -> None:
    for name in ("p0", "p1"):
        rig.cluster.get(name).error = ErrorInfo(code=ErrorCode.BAD_REQUEST, message="no")
    assert (await ask(rig)).status_code == 400
    [one] = (await ended(rig, 1)).requests
    assert one.ending == "failed"
    assert one.decisions[0].placement is not None


async def test_a_client_that_left_is_no_failure(rig: Rig) -> None:
    rig.cluster.get("d0").open.clear()
    asking = asyncio.ensure_future(ask(rig))
    await until(lambda: rig.cluster.get("d0").runs, what="decode runs")
    asking.cancel()
    reply = await ended(rig, 1)
    assert [one.ending for one in reply.requests] == ["cancelled"]
    rig.cluster.get("d0").open.set()


async def test_what_the_gateway_itself_refuses_is_kept_too(nats_url: str) -> None:
    async with running_rig(nats_url, max_in_flight=1) as rig:
        response = await ask(rig, n=2)
        assert response.status_code == 503
        [one] = (await ended(rig, 1)).requests
        assert (one.ending, one.decisions) == ("refused", [])
        assert one.error is not None
        assert "takes 1" in one.error.message


async def test_requests_are_read_in_pages_that_fit_a_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        assert (await ask(rig)).status_code == 200
    await ended(rig, 5)
    assert [one.number for one in (await read(rig, after=1, limit=2)).requests] == [2, 3]
    assert (await read(rig, after=5)).requests == []
    monkeypatch.setattr(recent, "MAX_REPLY_BYTES", 1)
    reply = await read(rig, after=2)
    assert ([one.number for one in reply.requests], reply.newest) == ([3], 5)


async def test_only_the_last_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "KEPT_REQUESTS", 2)
    kept = recent.Recent("g", "i")
    rig.service._generator._recent = kept  # type: ignore[union-attr]
    for _ in range(4):
        assert (await ask(rig)).status_code == 200
    await until(lambda: kept._newest == 4, what="all ended")
    reply = await kept.on_request(RecentRequest())
    assert [one.number for one in reply.requests] == [3, 4]
