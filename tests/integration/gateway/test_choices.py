"""Several choices, echo, and the fields that steer placement, over real HTTP and NATS."""

import asyncio
from typing import Any

import openai
import pytest

from shared.messages.common import ErrorCode, ErrorInfo, Targets
from tests.integration.gateway.conftest import ADMIN_KEY, Rig
from tests.support.deadline import until
from tests.support.fake_cluster import BLOCK_TOKENS, MODEL

pytestmark = pytest.mark.integration
USER: list[Any] = [{"role": "user", "content": "Say hello to the moon, please."}]
CHAT = {"model": MODEL, "messages": USER}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def chat(rig: Rig, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return await rig.http.post("/v1/chat/completions", json={**CHAT, **more}, headers=headers)


async def complete(rig: Rig, prompt: Any, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": prompt, **more}
    return await rig.http.post("/v1/completions", json=body)


async def test_choices_are_attempts_of_their_own_over_one_prompt(rig: Rig) -> None:
    answer = (await chat(rig, {"x-moonpool-bill": "1"}, n=3, seed=5)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello, moon!"}
    assert answer["usage"]["completion_tokens"] == 3 * 13
    runs = rig.cluster.get("p0").runs
    assert [run.sampling.seed for run in runs] == [5, 6, 7]
    assert len({run.ref.request_id for run in runs}) == 3
    assert len({run.chain for run in runs}) == 1
    names = [choice["moonpool"]["request_id"] for choice in answer["choices"]]
    assert names == [run.ref.request_id for run in runs]
    assert (await rig.http.get(f"/v1/bills/{names[2]}")).json()["request_id"] == names[2]


async def test_later_choices_wait_until_the_first_has_computed_the_prompt(rig: Rig) -> None:
    prefill = rig.cluster.get("p0")
    prefill.open.clear()
    answering = asyncio.ensure_future(complete(rig, [1] * (BLOCK_TOKENS + 1), n=2))
    await until(lambda: prefill.runs, what="first choice runs")
    assert len(rig.cluster.places) == 1
    prefill.open.set()
    assert len((await answering).json()["choices"]) == 2
    # A prompt that is not a whole chunk has nothing to share: all start at once.
    prefill.open.clear()
    answering = asyncio.ensure_future(complete(rig, [1] * BLOCK_TOKENS, n=2))
    await until(lambda: len(rig.cluster.places) == 4, what="both are placed")
    prefill.open.set()
    assert (await answering).status_code == 200


async def test_streamed_choices_are_told_apart_and_usage_counts_all(rig: Rig) -> None:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any") as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=USER, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = ["", ""]
    reasons: list[str] = []
    for chunk in chunks:
        for choice in chunk.choices:
            text[choice.index] += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == ["Hello, moon!"] * 2
    assert reasons == ["stop", "stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 26


async def test_a_choice_that_fails_fails_the_request_and_cancels_the_others(rig: Rig) -> None:
    rig.cluster.get("p0").error = ErrorInfo(code=ErrorCode.BAD_REQUEST, message="no")
    response = await chat(rig, n=2)
    assert response.status_code == 400
    await until(lambda: rig.service.num_in_flight == 0, what="nothing is in flight")


async def test_echo_starts_each_choice_with_the_prompt(rig: Rig) -> None:
    whole = (await complete(rig, "Say: ", echo=True, n=2, max_tokens=5)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["Say: Hello"] * 2
    ids = (await complete(rig, [*b"Say: "], echo=True, max_tokens=5)).json()
    assert ids["choices"][0]["text"] == "Say: Hello"
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any") as client:
        stream = await client.completions.create(
            model=MODEL, prompt="Say: ", echo=True, max_tokens=5, stream=True
        )
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Say: Hello"


async def test_targets_and_priority_reach_the_conductor_from_body_and_headers(rig: Rig) -> None:
    headers = {
        "x-moonpool-ttft-slo-ms": "900",
        "x-moonpool-tbt-slo-ms": "50",
        "x-moonpool-priority": "low",
    }
    assert (await chat(rig, headers)).status_code == 200
    asked = rig.cluster.places[0]
    assert asked.ttft_slo_ms is not None
    assert 800 < asked.ttft_slo_ms <= 900  # what the way here took is gone
    assert (asked.tbt_slo_ms, asked.priority) == (50, "low")
    assert (await chat(rig, headers, tbt_slo_ms=70, priority="high")).status_code == 200
    assert (rig.cluster.places[1].tbt_slo_ms, rig.cluster.places[1].priority) == (70, "high")
    for name, value in (
        ("x-moonpool-ttft-slo-ms", "soon"),
        ("x-moonpool-tbt-slo-ms", "-1"),
        ("x-moonpool-priority", "urgent"),
    ):
        refused = await chat(rig, {name: value})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == name


async def test_a_refusal_for_targets_comes_at_once_and_says_what_was_compared(rig: Rig) -> None:
    rig.cluster.refusal = ErrorInfo(
        code=ErrorCode.OVERLOADED, message="too late", is_retryable=True, retry_after_s=1.5
    )
    rig.cluster.targets = Targets(predicted_ttft_s=2.0, allowed_ttft_s=0.5, predicted_tbt_s=0.01)
    response = await chat(rig, ttft_slo_ms=500)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["targets"] == {
        "predicted_ttft_ms": 2000.0,
        "predicted_tbt_ms": 10.0,
        "allowed_ttft_ms": 500.0,
        "allowed_tbt_ms": None,
    }
    assert len(rig.cluster.places) == 1


async def test_a_policy_needs_the_admin_key(rig: Rig) -> None:
    assert (await chat(rig, policy="random")).json()["error"]["param"] == "policy"
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    assert (await chat(rig, admin, policy="random")).status_code == 200
    assert rig.cluster.places[0].policy == "random"


async def test_another_salt_shares_no_block(rig: Rig) -> None:
    prompt = [1] * 4 * BLOCK_TOKENS
    for salt in (None, "a", "b", "a"):
        assert (await complete(rig, prompt, cache_salt=salt)).status_code == 200
    chains = [
        {run.chain[at : at + 16] for at in range(0, len(run.chain), 16)}
        for run in rig.cluster.get("p0").runs
    ]
    assert chains[1] == chains[3]
    assert not chains[0] & chains[1]
    assert not chains[1] & chains[2]
    assert len(rig.cluster.get("p0").runs[1].namespace) == 16


async def test_a_trace_is_continued_to_every_service_and_kept_in_the_bill(rig: Rig) -> None:
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "traced-one"}
    assert (await chat(rig, headers, user="ann")).status_code == 200
    handed_on = [
        rig.cluster.places[0].traceparent,
        rig.cluster.get("p0").runs[0].traceparent,
        rig.cluster.get("d0").runs[0].traceparent,
    ]
    assert len(set(handed_on)) == 1
    assert handed_on[0].startswith(f"00-{TRACE}-")
    assert not handed_on[0].endswith("00f067aa0ba902b7-01")
    bill = (await rig.http.get("/v1/bills/traced-one")).json()
    assert (bill["traceparent"], bill["user"]) == (handed_on[0], "ann")


async def test_several_prompts_have_their_choices_one_after_the_other(rig: Rig) -> None:
    answer = (
        await complete(
            rig,
            ["Say: ", [*b"Tell: "]],
            n=2,
            echo=True,
            seed=5,
            max_tokens=5,
            return_token_ids=True,
        )
    ).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["Say: Hello"] * 2 + ["Tell: Hello"] * 2
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][3]["prompt_token_ids"] == [*b"Tell: "]
    assert answer["usage"]["prompt_tokens"] == len("Say: ") + len("Tell: ")
    assert answer["usage"]["completion_tokens"] == 20
    runs = rig.cluster.get("p0").runs
    assert sorted(run.sampling.seed for run in runs) == [5, 5, 6, 6]
    many = await complete(rig, ["a"] * 65)
    assert many.status_code == 400
    assert many.json()["error"]["param"] == "prompt"
    bad = await complete(rig, ["a", [1.5]])
    assert bad.json()["error"]["param"] == "prompt"
