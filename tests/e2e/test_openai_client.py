"""OpenAI's own client and its streaming helpers against a cluster."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.cluster import DUMMY_MODEL, HostedCluster
from tests.support.load import Load

pytestmark = pytest.mark.e2e
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello to the moon."}]
GREEDY: dict[str, Any] = {
    "model": DUMMY_MODEL,
    "temperature": 0,
    "max_tokens": 8,
    "extra_body": {"ignore_eos": True},
}
LONG_PROMPT = [3 + 7 * place % 250 for place in range(509)]
"""An answer of eight tokens lies across the border of a grid chunk."""


@pytest.fixture(scope="module")
def client(dummy_cluster: HostedCluster) -> Iterator[openai.OpenAI]:
    url = f"{dummy_cluster.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=30) as client:
        yield client


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [DUMMY_MODEL]
    assert client.models.retrieve(DUMMY_MODEL).owned_by == "moonpool"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_a_chat_whole_streamed_and_by_the_helper_is_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=USER, **GREEDY)
    text = whole.choices[0].message.content
    assert text
    stream = client.chat.completions.create(messages=USER, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    # The helper takes an answer that is cut by its length for an error.
    stop = text[-2:]
    with client.chat.completions.stream(
        messages=USER, stop=stop, stream_options={"include_usage": True}, **GREEDY
    ) as helper:
        kinds = [event.type for event in helper]
        final = helper.get_final_completion()
    assert kinds.count("content.delta") >= 1
    assert "content.done" in kinds
    assert final.choices[0].message.content == text[: text.find(stop)]
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_helper_takes_choices_and_logprobs(client: openai.OpenAI) -> None:
    drawn: dict[str, Any] = {**GREEDY, "temperature": 1, "n": 2, "seed": 3}
    whole = client.chat.completions.create(messages=USER, **drawn)
    texts = [choice.message.content or "" for choice in whole.choices]
    assert texts[0] != texts[1]
    stops = [text[-2:] for text in texts]
    with client.chat.completions.stream(
        messages=USER, logprobs=True, top_logprobs=2, stop=stops, **drawn
    ) as helper:
        final = helper.get_final_completion()
    assert [choice.index for choice in final.choices] == [0, 1]
    for choice, text in zip(final.choices, texts, strict=True):
        assert text.startswith(choice.message.content or "")
        assert choice.finish_reason == "stop"
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)


async def test_the_asynchronous_client_streams_too(dummy_cluster: HostedCluster) -> None:
    url = f"{dummy_cluster.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        whole = await client.chat.completions.create(messages=USER, **GREEDY)
        stop = (whole.choices[0].message.content or "")[-2:]
        async with client.chat.completions.stream(messages=USER, stop=stop, **GREEDY) as helper:
            text = "".join([event.delta async for event in helper if event.type == "content.delta"])
            assert (await helper.get_final_completion()).choices[0].message.content == text
        stream = await client.completions.create(prompt="moon", stream=True, **GREEDY)
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "length"


def test_several_prompts_are_answered_in_order(client: openai.OpenAI) -> None:
    prompts = ["moon", "sun"]
    alone = [client.completions.create(prompt=one, **GREEDY).choices[0].text for one in prompts]
    both = client.completions.create(prompt=prompts, **GREEDY)
    assert [choice.text for choice in both.choices] == alone


def test_completions_echo_stop_and_count(client: openai.OpenAI) -> None:
    plain = client.completions.create(prompt="moon", **GREEDY).choices[0].text
    echoed = client.completions.create(prompt="moon", echo=True, **GREEDY).choices[0].text
    assert echoed == "moon" + plain
    stop = plain[2:5]
    stopped = client.completions.create(prompt="moon", stop=stop, **GREEDY).choices[0]
    assert stopped.text == plain[: plain.find(stop)]
    assert stopped.finish_reason == "stop"
    likely = client.completions.create(prompt="moon", logprobs=2, **GREEDY).choices[0].logprobs
    assert likely is not None
    assert likely.tokens is not None
    assert len(likely.tokens) == 8


@pytest.mark.parametrize(
    ("fields", "extra"),
    [
        ({}, {"top_k": 1}),
        ({"top_p": 1e-6}, {}),
        ({}, {"min_p": 1.0}),
        ({"presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}, {"top_k": 1}),
    ],
)
def test_a_draw_from_the_likeliest_token_alone_is_the_greedy_one(
    client: openai.OpenAI, fields: dict[str, Any], extra: dict[str, Any]
) -> None:
    greedy = client.completions.create(prompt="moon", **GREEDY).choices[0].text
    drawn = {**GREEDY, "temperature": 2, "extra_body": {**GREEDY["extra_body"], **extra}, **fields}
    assert client.completions.create(prompt="moon", **drawn).choices[0].text == greedy


def test_biases_penalties_and_seeds_change_what_is_chosen(client: openai.OpenAI) -> None:
    def tokens(**fields: Any) -> list[str]:
        asked = {**GREEDY, "logprobs": 0, **fields}
        found = client.completions.create(prompt="moon", **asked).choices[0].logprobs
        assert found is not None
        assert found.tokens is not None
        return found.tokens

    assert tokens(logit_bias={"65": 100}) == ["A"] * 8
    # Each time it is given a token of two wanted ones weighs less than the other.
    wanted = {"65": 60, "66": 60}
    assert len(set(tokens(logit_bias=wanted))) == 1
    even = tokens(logit_bias=wanted, frequency_penalty=2)
    assert set(even) == {"A", "B"}
    assert set(tokens(logit_bias=wanted, presence_penalty=2)) <= {"A", "B"}
    penalised = tokens(extra_body={**GREEDY["extra_body"], "repetition_penalty": 10.0})
    assert len(set(penalised)) == 8
    first, again, other = (tokens(temperature=2, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_prompt_is_scored_with_the_logprobs_that_generation_gave(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "logprobs": 1, "extra_body": {"ignore_eos": True}}
    asked["extra_body"]["return_token_ids"] = True
    generated = client.completions.create(prompt=LONG_PROMPT, echo=True, **asked).choices[0]
    tokens = [*LONG_PROMPT, *generated.token_ids]  # type: ignore[attr-defined]
    alone = client.completions.create(
        prompt=tokens, echo=True, logprobs=1, max_tokens=0, model=DUMMY_MODEL
    )
    told, found = generated.logprobs, alone.choices[0].logprobs
    assert told is not None
    assert found is not None
    for name in ("tokens", "text_offset"):
        assert getattr(found, name) == getattr(told, name)
        assert len(getattr(found, name)) == len(tokens)
    assert found.token_logprobs is not None
    assert told.token_logprobs is not None
    assert found.token_logprobs[0] is None
    assert found.token_logprobs[1:] == pytest.approx(told.token_logprobs[1:], abs=1e-3)
    assert found.top_logprobs is not None
    # The answer was greedy: what it chose is the likeliest token where it was chosen.
    for logprob, top in zip(found.token_logprobs[-8:], found.top_logprobs[-8:], strict=True):
        assert logprob == max(top.values())
    assert alone.choices[0].text == generated.text
    assert alone.usage is not None
    assert alone.usage.completion_tokens == 0
    assert alone.usage.prompt_tokens == len(tokens)


def test_a_scored_prompt_is_the_same_cached_or_not_alone_or_in_a_list_whole_or_streamed(
    client: openai.OpenAI,
) -> None:
    asked: dict[str, Any] = {**GREEDY, "echo": True, "logprobs": 2, "max_tokens": 1}
    text = "The moon is far away. " * 30
    first = client.completions.create(prompt=text, **asked).choices[0]
    cached = client.completions.create(prompt=text, max_tokens=1, model=DUMMY_MODEL).usage
    assert cached is not None
    assert cached.prompt_tokens_details is not None
    assert cached.prompt_tokens_details.cached_tokens == 512
    both = client.completions.create(prompt=[text, "sun"], **asked)
    assert both.choices[0].logprobs == first.logprobs
    assert both.usage is not None
    assert both.usage.prompt_tokens_details is not None
    assert both.usage.prompt_tokens_details.cached_tokens == 0
    sun = both.choices[1].logprobs
    assert sun is not None
    assert sun.tokens is not None
    assert sun.tokens[:3] == ["s", "u", "n"]
    parts = [
        chunk.choices[0] for chunk in client.completions.create(prompt=text, stream=True, **asked)
    ]
    assert parts[0].text.startswith(text)
    assert first.logprobs is not None
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [one for part in parts if part.logprobs for one in getattr(part.logprobs, name)]
        assert streamed == getattr(first.logprobs, name)


def test_raw_responses_carry_the_request_id(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=USER, extra_headers={"x-request-id": "mine"}, **GREEDY
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().choices[0].finish_reason == "length"
    assert raw.parse()._request_id == "mine"


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 5_000}, openai.BadRequestError, "max_tokens"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {}},
                }
            },
            openai.BadRequestError,
            "response_format",
        ),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"extra_body": {"guided_json": {}}}, openai.BadRequestError, "guided_json"),
        ({"extra_body": {"prompt_logprobs": 1}}, openai.BadRequestError, "prompt_logprobs"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            openai.BadRequestError,
            "tools",
        ),
        ({"extra_body": {"policy": "random"}}, openai.PermissionDeniedError, "policy"),
        ({"extra_body": {"ttft_slo_ms": 1e-3}}, openai.RateLimitError, None),
    ],
)
def test_errors_are_those_of_the_client(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(messages=USER, **{**GREEDY, **fields})
    assert caught.value.param == param
    if error is openai.RateLimitError:
        assert int(caught.value.response.headers["retry-after"]) >= 1
        targets = caught.value.body["targets"]  # type: ignore[index]
        assert targets["predicted_ttft_ms"] > targets["allowed_ttft_ms"]


async def test_a_stream_that_is_closed_early_leaves_nothing(
    client: openai.OpenAI, dummy_cluster: HostedCluster
) -> None:
    long = {**GREEDY, "max_tokens": 1_500}
    with client.chat.completions.create(messages=USER, stream=True, n=2, **long) as stream:
        assert next(stream).choices
    await Load(dummy_cluster).all_is_given_back()
