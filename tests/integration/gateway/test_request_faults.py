"""What goes wrong behind a gateway: the client gets its whole answer once, or one clear error."""

import asyncio
from typing import Any

import numpy as np
import pytest

from shared.messages.common import ErrorCode, ErrorInfo
from shared.messages.prefill import PrefillRun
from tests.integration.gateway.conftest import Rig
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL, FakeInstance

pytestmark = pytest.mark.integration
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say hello."}],
}
BILL = {"x-moonpool-bill": "1"}


async def ask(rig: Rig, **more: Any) -> Any:
    return await rig.http.post("/v1/chat/completions", json={**CHAT, **more}, headers=BILL)


def check_answer(response: Any, *, attempts: int) -> None:
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["choices"][0]["message"]["content"] == "Hello, moon!"
    assert body["usage"]["completion_tokens"] == 13
    assert body["moonpool"]["attempts"] == attempts


async def test_repeated_chunks_are_given_once(rig: Rig) -> None:
    rig.cluster.repeats_chunks = True
    check_answer(await ask(rig), attempts=1)


async def test_a_prefill_that_dies_is_replaced(rig: Rig) -> None:
    rig.cluster.get("p0").dies_after = 0
    check_answer(await ask(rig), attempts=2)
    assert rig.cluster.places[1].exclude == ["p0-i"]
    assert rig.cluster.get("d0").cancels[0].attempt == 0


async def test_a_decode_that_dies_in_mid_stream_is_replaced_by_a_resume(rig: Rig) -> None:
    rig.cluster.get("d0").dies_after = 5
    check_answer(await ask(rig), attempts=2)
    resumed = rig.cluster.get("d1").runs[0]
    assert bytes(np.frombuffer(resumed.given_tokens, "<i4").astype(np.uint8)) == b"Hello"
    second_prefill: PrefillRun = rig.cluster.get("p0").runs[1]
    assert second_prefill.is_resume


async def test_a_silent_decode_is_replaced_although_it_never_answers(rig: Rig) -> None:
    decode = rig.cluster.get("d0")
    decode.open.clear()
    decode.is_silent = True
    check_answer(await ask(rig), attempts=2)


async def test_an_instance_that_was_started_anew_is_not_waited_for(rig: Rig) -> None:
    old = rig.cluster.get("d0")
    old.open.clear()
    answering = asyncio.ensure_future(ask(rig))
    await until(lambda: old.runs, what="decode runs")
    await old.die()
    await rig.cluster.add("decode", "d0", "new")
    check_answer(await answering, attempts=2)


@pytest.mark.parametrize("lost", [3, 12, 13])
async def test_lost_tokens_are_made_again(rig: Rig, lost: int) -> None:
    """Index 13 is the chunk that only says that the answer is finished."""
    rig.cluster.get("d0").drops = {lost}
    rig.cluster.get("d0").drops_in_attempts = {0}
    check_answer(await ask(rig), attempts=1 if lost == 13 else 2)


async def test_a_stage_error_that_may_pass_is_tried_elsewhere(rig: Rig) -> None:
    rig.cluster.get("p0").error = ErrorInfo(
        code=ErrorCode.POOL_LOST, message="pool is gone", is_retryable=True
    )
    check_answer(await ask(rig), attempts=2)


async def test_a_stage_error_that_stays_is_told_once(rig: Rig) -> None:
    rig.cluster.get("p0").error = ErrorInfo(code=ErrorCode.INTERNAL, message="it broke")
    response = await ask(rig)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "it broke"
    assert len(rig.cluster.places) == 1


async def test_an_error_in_mid_stream_is_the_last_event(rig: Rig) -> None:
    decode = rig.cluster.get("d0")
    decode.open.clear()
    async with rig.http.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
    ) as response:
        assert response.status_code == 200
        rig.service.abandon_all()
        lines = [line async for line in response.aiter_lines() if line]
    assert '"error"' in lines[-2]
    assert lines[-1] == "data: [DONE]"


async def leave_when(rig: Rig, instance: FakeInstance, *, is_stream: bool) -> None:
    """Ask, and close the connection once the instance has the run."""
    asking = asyncio.ensure_future(ask(rig, stream=is_stream))
    await until(lambda: instance.runs, what="run")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_cancels_the_work(
    rig: Rig, is_stream: bool
) -> None:
    prefill, decode = rig.cluster.get("p0"), rig.cluster.get("d0")
    prefill.open.clear()
    await leave_when(rig, prefill, is_stream=is_stream)
    await until(lambda: prefill.cancels and decode.cancels, what="cancels")
    assert rig.service.num_in_flight == 0


async def test_a_client_that_leaves_in_mid_stream_cancels_the_work(rig: Rig) -> None:
    decode = rig.cluster.get("d0")
    decode.open.clear()
    async with rig.http.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
    ) as response:
        await anext(response.aiter_lines())
    await until(lambda: decode.cancels, what="cancel")
    assert rig.service.num_in_flight == 0


async def test_many_requests_at_once_are_kept_apart(rig: Rig) -> None:
    responses = await asyncio.gather(*(ask(rig, max_tokens=13) for _ in range(50)))
    for response in responses:
        check_answer(response, attempts=1)
    assert rig.service.num_in_flight == 0
