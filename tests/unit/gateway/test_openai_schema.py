"""What a client may send, and how the rest is refused."""

import json
from typing import Any

import pytest

from services.gateway.errors import ApiError
from services.gateway.openai_schema import ChatBody, CompletionBody, parse_chat, parse_completion
from services.gateway.sampling import sampling_of
from shared.messages.common import Sampling

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


def chat(**more: Any) -> ChatBody:
    return parse_chat(json.dumps({**CHAT, **more}).encode())


def completion(**more: Any) -> CompletionBody:
    return parse_completion(json.dumps({**COMPLETION, **more}).encode())


def refused(**more: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**more)
    assert caught.value.status == 400
    return caught.value


def test_a_plain_chat_has_openai_defaults() -> None:
    body = chat()
    assert body.temperature is None
    assert body.answer_limit is None
    assert body.cache == "on"
    assert not body.stream


def test_values_that_mean_nothing_are_taken() -> None:
    body = chat(
        n=None,
        presence_penalty=0,
        frequency_penalty=0.0,
        logprobs=False,
        logit_bias={},
        response_format={"type": "text"},
        tools=None,
        tool_choice="none",
        parallel_tool_calls=True,
        stop=None,
        stream=None,
        seed=None,
        user="someone",
    )
    assert body.stop == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 17),
        ("n", 0),
        ("priority", "urgent"),
        ("ttft_slo_ms", 0),
        ("tbt_slo_ms", "fast"),
        ("cache_salt", ""),
        ("cache_salt", "x" * 257),
        ("cache_salt", "\ud800"),
        ("policy", ""),
        ("user", 5),
        ("n", True),
        ("logprobs", 1),
        ("top_logprobs", 2),  # without logprobs
        ("top_logprobs", 21),
        ("presence_penalty", 2.5),
        ("frequency_penalty", "much"),
        ("repetition_penalty", 0),
        ("min_p", 1.5),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"one": 2}),
        ("logit_bias", {"-1": 2}),
        ("logit_bias", [1, 2]),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("service_tier", "flex"),
        ("something_new", 1),
        ("max_tokens", 0),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("max_completion_tokens", -1),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_k", -2),
        ("seed", 2**63),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("cache", "maybe"),
        ("model", ""),
        ("model", None),
        ("messages", []),
        ("messages", "hi"),
        ("placement", {"node": "a"}),
    ],
)
def test_everything_else_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert error.param is not None
    assert error.param.split(".")[0] == field
    assert field in error.message


def test_a_field_inside_is_named_with_its_path() -> None:
    both = [{"role": "user", "content": "a"}, {"role": "user", "content": 5}]
    assert refused(messages=both).param == "messages[1].content"
    assert refused(messages=[{"role": "robot", "content": "a"}]).param == "messages[0].role"
    assert refused(messages=[{"role": "user"}]).param == "messages[0].content"
    assert refused(placement={"node": "a"}).param == "placement.node"
    named = refused(messages=[{"role": "user", "content": "a", "name": "Ann"}])
    assert named.param == "messages[0].name"


def test_not_a_number_is_refused() -> None:
    raw = json.dumps({**CHAT, "temperature": float("nan")}).encode()
    with pytest.raises(ApiError, match="temperature"):
        parse_chat(raw)


def test_text_parts_are_joined_and_others_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "ab"
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    error = refused(messages=[{"role": "user", "content": image}])
    assert error.param == "messages[0].content"
    assert "image_url" in error.message


def test_an_answer_can_be_sent_back_as_libraries_write_it() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "function_call": None,
        "audio": None,
    }
    assert chat(messages=[answer]).messages[0].as_template_input() == {
        "role": "assistant",
        "content": "a",
    }


def test_a_message_may_say_that_it_is_one() -> None:
    for kind in ("text", "message", None):
        assert chat(messages=[{"role": "user", "content": "a", "type": kind}]).messages
    assert refused(messages=[{"role": "user", "content": "a", "type": "image"}]).param == (
        "messages[0].type"
    )


def test_developer_is_system_for_the_template() -> None:
    body = chat(messages=[{"role": "developer", "content": "a"}])
    assert body.messages[0].as_template_input()["role"] == "system"


def test_two_different_limits_are_refused_and_equal_ones_taken() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).answer_limit == 5
    assert chat(max_completion_tokens=6).answer_limit == 6
    assert refused(max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"


def test_stream_options_count_with_stream_only() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).includes_usage
    assert not chat(stream=True, stream_options=None).includes_usage


def test_a_prompt_is_text_or_token_ids() -> None:
    assert completion().answer_limit == 16
    assert completion(prompt=["hi"]).prompt == ["hi"]
    assert completion(prompt=["hi", [1]]).num_choices == 2
    assert completion(prompt=["hi", "ho"], n=3).num_choices == 6
    assert completion(prompt=[1, 2]).prompt == [[1, 2]]
    assert completion(prompt=[[1, 2]]).prompt == [[1, 2]]


@pytest.mark.parametrize(
    "prompt", ["", [], ["a", ""], ["a"] * 65, [1, "a"], [True], {}, None, [[]], 5]
)
def test_other_prompts_are_refused_by_name(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_no_tokens_at_all_are_for_a_prompt_that_is_echoed() -> None:
    scored = completion(max_tokens=0, echo=True, logprobs=2)
    assert (scored.answer_limit, scored.num_prompt_logprobs, scored.num_top_logprobs) == (0, 2, 2)
    assert completion(max_tokens=0, echo=True).num_prompt_logprobs is None
    assert completion(logprobs=2).num_prompt_logprobs is None
    assert completion(echo=True, logprobs=0).num_prompt_logprobs == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"max_tokens": False, "echo": True}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "placement": {"decode": "d1"}}, "placement"),
    ],
)
def test_no_tokens_of_anything_else_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("field", ["echo", "suffix", "best_of", "top_logprobs"])
def test_completion_fields_that_are_not_there_are_refused(field: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**{field: 3})
    assert caught.value.param == field


def test_sampling_fields_reach_the_instances_and_left_out_ones_mean_nothing() -> None:
    plain = sampling_of(chat(), 5, seed=1)
    assert plain == Sampling(max_tokens=5, temperature=1.0, seed=1)
    assert sampling_of(chat(logprobs=True), 5, seed=1).top_logprobs == 0
    assert sampling_of(completion(logprobs=3), 5, seed=1).top_logprobs == 3
    full = sampling_of(
        chat(
            temperature=0,
            min_p=0.1,
            presence_penalty=1,
            frequency_penalty=-0.5,
            repetition_penalty=1.2,
            logit_bias={"7": -100, "3": 1.5},
            logprobs=True,
            top_logprobs=4,
        ),
        5,
        seed=1,
    )
    assert full == Sampling(
        max_tokens=5,
        temperature=0.0,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias=[(3, 1.5), (7, -100.0)],
        top_logprobs=4,
        seed=1,
    )


@pytest.mark.parametrize("depth", [600, 900, 100_000])
@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
def test_a_body_that_is_nested_very_deeply_is_the_senders_fault(parse: Any, depth: int) -> None:
    for inner in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ApiError) as caught:
            parse(f'{{"model": "m", "prompt": {inner}}}'.encode())
        assert caught.value.status == 400
