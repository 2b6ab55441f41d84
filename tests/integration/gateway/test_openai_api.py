"""The OpenAI API over real HTTP and NATS, with OpenAI's own client for the happy paths."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import openai
import pytest

from shared.messages import subjects
from shared.messages.bill import BillRequest, FinishedBill
from shared.messages.common import ErrorCode, ErrorInfo
from tests.integration.gateway.conftest import ADMIN_KEY, Rig
from tests.support.deadline import until
from tests.support.fake_cluster import CONTEXT_TOKENS, EOS, MODEL

pytestmark = pytest.mark.integration
USER: list[Any] = [{"role": "user", "content": "Say hello to the moon, please."}]
CHAT = {"model": MODEL, "messages": USER}


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any", max_retries=0) as client:
        yield client


async def chat(rig: Rig, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return await rig.http.post("/v1/chat/completions", json={**CHAT, **more}, headers=headers)


async def test_a_chat_is_answered_whole_with_real_usage(
    rig: Rig, client: openai.AsyncOpenAI
) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=USER)
    assert answer.choices[0].message.content == "Hello, moon!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 32
    assert answer.usage.completion_tokens == 13
    # Three special tokens; every other token of the dummy tokenizer is one byte.
    prompt_tokens = 3 + len("user\nSay hello to the moon, please.\nassistant\n")
    assert answer.usage.prompt_tokens == prompt_tokens
    run = rig.cluster.get("p0").runs[0]
    assert run.sampling.temperature == 1.0
    assert len(run.chain) == prompt_tokens // 16 * 16


async def test_a_streamed_chat_has_role_text_reason_and_usage_in_order(
    client: openai.AsyncOpenAI,
) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=USER,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[1:-1])
    assert text == "Hello, moon!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 13
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_completions_take_text_and_token_ids(client: openai.AsyncOpenAI) -> None:
    for prompt in ("Hello", [72, 101], ["Hello"]):
        answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=5)
        assert answer.choices[0].text == "Hello"
        assert answer.choices[0].finish_reason == "length"
    stream = await client.completions.create(model=MODEL, prompt="x", max_tokens=3, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hel"


async def test_logprobs_come_as_openai_writes_them_whole_and_streamed(
    client: openai.AsyncOpenAI,
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, top_logprobs=2, max_tokens=4
    )
    said = answer.choices[0].logprobs
    assert said is not None
    assert said.content is not None
    assert [one.token for one in said.content] == ["H", "e", "l", "l"]
    assert said.content[0].logprob == -1.0 - ord("H")
    assert said.content[0].bytes == [ord("H")]
    assert [(one.bytes, one.logprob) for one in said.content[0].top_logprobs] == [
        ([0], -0.5),
        ([1], -0.5),
    ]
    stream = await client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, stream=True
    )
    streamed = [
        one
        async for chunk in stream
        for choice in chunk.choices
        if choice.logprobs is not None
        for one in choice.logprobs.content or []
    ]
    assert "".join(one.token for one in streamed) == "Hello, moon!<|eos|>"
    assert streamed[0].top_logprobs == []


async def test_logprobs_of_completions_are_parallel_lists(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="x", logprobs=1, max_tokens=3)
    said = answer.choices[0].logprobs
    assert said is not None
    assert (said.tokens, said.text_offset) == (["H", "e", "l"], [0, 1, 2])
    assert said.token_logprobs == [-1.0 - ord(char) for char in "Hel"]
    # The chosen token is named beside the likely one.
    assert said.top_logprobs is not None
    assert [len(likely) for likely in said.top_logprobs] == [2, 2, 2]
    assert said.top_logprobs[0]["H"] == -1.0 - ord("H")
    plain = await client.completions.create(model=MODEL, prompt="x", max_tokens=3)
    assert plain.choices[0].logprobs is None


async def test_penalties_and_biases_reach_both_instances(
    rig: Rig, client: openai.AsyncOpenAI
) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=USER,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={"65": -100},
        extra_body={"min_p": 0.1, "repetition_penalty": 1.1},
    )
    for instance in ("p0", "d0"):
        sampling = rig.cluster.get(instance).runs[0].sampling
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.25)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)
        assert sampling.logit_bias == [(65, -100.0)]


async def test_stop_text_is_not_given_and_ends_the_run(rig: Rig) -> None:
    rig.cluster.get("d0").open.clear()
    answering = asyncio.ensure_future(chat(rig, stop=["ll", "moon"], return_token_ids=True))
    await until(lambda: rig.cluster.get("d0").runs, what="decode runs")
    rig.cluster.get("d0").open.set()
    choice = (await answering).json()["choices"][0]
    assert choice["message"]["content"] == "He"
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == [*b"Hell"]


async def test_token_ids_are_returned_when_asked_for(rig: Rig) -> None:
    body = (await chat(rig, return_token_ids=True)).json()
    assert body["choices"][0]["token_ids"] == [*b"Hello, moon!", EOS]
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]


async def test_the_bill_is_in_the_response_at_the_bills_path_and_on_the_bus(rig: Rig) -> None:
    headers = {"x-moonpool-bill": "1", "x-request-id": "my.request"}
    response = await chat(rig, headers)
    assert response.headers["x-request-id"] == "my.request"
    bill = response.json()["moonpool"]
    assert bill["prefill"] == "p0"
    assert bill["decode"] == "d0"
    assert bill["cached_from"] == "mixed"
    assert (bill["fetched_bytes"], bill["streamed_bytes"], bill["bytes_moved"]) == (100, 50, 150)
    assert bill["attempts"] == 1
    assert bill["ttft_s"] > 0
    assert bill["bill"]["predicted"]["ttft_s"] == 0.3
    assert bill["bill"]["real"]["compute_s"] == 0.03
    assert bill["bill"]["real"]["handoff_s"] == 0.04
    for name in ("my.request", bill["request_id"]):
        kept = (await rig.http.get(f"/v1/bills/{name}")).json()
        assert kept["request_id"] == bill["request_id"]
    await until(lambda: rig.cluster.bills, what="bill on the bus")
    on_bus = await rig.cluster.bus.request(
        subjects.gateway_bill(rig.context.id),
        BillRequest(request_id=bill["request_id"]),
        FinishedBill,
        timeout_s=5,
    )
    assert on_bus == rig.cluster.bills[0]
    assert (await rig.http.get("/v1/bills/other")).status_code == 404


async def test_a_bill_is_found_by_an_id_with_slashes(rig: Rig) -> None:
    name = "team/7?#%"
    assert (await chat(rig, {"x-request-id": name})).status_code == 200
    kept = await rig.http.get(f"/v1/bills/{quote(name, safe='')}")
    assert kept.json()["request_id"].startswith("team_7___-")


async def test_a_traced_request_tells_its_life_in_json(rig: Rig) -> None:
    events: list[dict[str, Any]] = []

    async def on_event(message: Any) -> None:
        events.append(json.loads(message.data))

    inner = await rig.cluster.bus.client.subscribe(subjects.trace("traced"), cb=on_event)
    await rig.cluster.bus.flush()
    await chat(rig, {"x-moonpool-trace": "1", "x-request-id": "traced"})
    await until(lambda: any(event["event"] == "finished" for event in events), what="trace")
    assert [event["event"] for event in events][:3] == ["tokenised", "place", "placed"]
    await inner.unsubscribe()


async def test_models_and_health_are_told(rig: Rig) -> None:
    models = (await rig.http.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert (await rig.http.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
    for path in ("/live", "/health", "/ready"):
        assert (await rig.http.get(path)).status_code == 200
    missing = await rig.http.get("/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "http_error"


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "other"}, 404, "model", "model_not_found"),
        ({"messages": []}, 400, "messages", "invalid_value"),
        ({"tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
        ({"logit_bias": {"512": 1}}, 400, "logit_bias", "invalid_value"),
        ({"max_tokens": CONTEXT_TOKENS}, 400, "max_tokens", "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": "x" * 600}]},
            400,
            "messages",
            "context_length_exceeded",
        ),
        ({"placement": {"prefill": "p1"}}, 403, "placement", "admin_key_required"),
        ({"user": "x" * 100_000}, 413, None, "body_too_large"),
    ],
)
async def test_a_bad_request_names_its_field(
    rig: Rig, change: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    response = await chat(rig, **change)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == param
    assert error["code"] == code
    assert not rig.cluster.places


async def test_a_prompt_beyond_the_context_is_refused_with_the_counts(rig: Rig) -> None:
    response = await rig.http.post(
        "/v1/completions", json={"model": MODEL, "prompt": [1] * 600, "max_tokens": 1}
    )
    message = response.json()["error"]["message"]
    assert message.startswith("This model's maximum context length is 512 tokens. However, ")
    assert "600 tokens" in message


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("model", b'{"model": "\\ud800", "messages": [{"role": "user", "content": "a"}]}'),
        ("messages", b'{"model": "M", "messages": [{"role": "user", "content": "\\ud800"}]}'),
    ],
)
async def test_half_a_character_is_refused_not_choked_on(rig: Rig, field: str, raw: bytes) -> None:
    body = raw.replace(b'"M"', json.dumps(MODEL).encode())
    response = await rig.http.post("/v1/chat/completions", content=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b'"text"', b""])
async def test_a_body_that_is_no_json_object_is_refused(rig: Rig, raw: bytes) -> None:
    response = await rig.http.post("/v1/chat/completions", content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_placement_and_cache_reach_the_conductor_and_the_instances(rig: Rig) -> None:
    response = await chat(
        rig,
        {"authorization": f"Bearer {ADMIN_KEY}", "x-moonpool-cache": "off"},
        placement={"prefill": "p1", "decode": "d1"},
        temperature=0,
        seed=7,
        top_k=3,
    )
    assert response.status_code == 200
    assert rig.cluster.places[0].cache == "off"
    run = rig.cluster.get("d1").runs[0]
    assert run.cache == "off"
    assert (run.sampling.temperature, run.sampling.seed, run.sampling.top_k) == (0.0, 7, 3)
    wrong = await chat(rig, {"authorization": "Bearer wrong"}, placement={})
    assert wrong.status_code == 403


async def test_an_overloaded_cluster_answers_429_with_retry_after(rig: Rig) -> None:
    rig.cluster.refusal = ErrorInfo(
        code=ErrorCode.OVERLOADED, message="full", is_retryable=True, retry_after_s=2.5
    )
    response = await chat(rig, stream=True)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert len(rig.cluster.places) > 1
