"""From a body to tokens, keys and the length of the answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.gateway.errors import ApiError
from services.gateway.openai_schema import parse_chat, parse_completion
from services.gateway.prompts import (
    MESSAGE_ROOM_BYTES,
    SHORT_CHARS,
    SHORT_PARTS,
    Prompt,
    PromptMaker,
)
from shared.checkpoint.text_model import load_text_model
from shared.kv.block_keys import chain_keys
from shared.messages.conductor import ModelInfo

TEXT_MODEL = load_text_model("dummy:tiny")
MODEL = ModelInfo(
    name="m",
    root=b"r" * 16,
    kv_format={},
    block_tokens=16,
    grid_tokens=32,
    context_tokens=100,
    block_bytes=1,
)


@pytest.fixture
def prompts() -> Iterator[PromptMaker]:
    made = PromptMaker(TEXT_MODEL, default_max_tokens=20, max_message_bytes=1 << 20)
    yield made
    made.close()


async def completion(prompts: PromptMaker, prompt: Any, **more: Any) -> Prompt:
    raw = json.dumps({"model": "m", "prompt": prompt, **more}).encode()
    (made,) = await prompts.completion(parse_completion(raw), MODEL)
    return made


async def chat(prompts: PromptMaker, text: str, **more: Any) -> Prompt:
    messages = [{"role": "user", "content": text}]
    raw = json.dumps({"model": "m", "messages": messages, **more}).encode()
    return await prompts.chat(parse_chat(raw), MODEL)


async def test_the_chain_has_the_keys_of_the_full_blocks_under_the_root(
    prompts: PromptMaker,
) -> None:
    prompt = await completion(prompts, "x" * 40)
    assert prompt.num_tokens == 40
    assert prompt.chain == chain_keys(MODEL.root, prompt.packed, 16)
    assert len(prompt.chain) == 32


async def test_a_chat_is_rendered_by_the_models_template(prompts: PromptMaker) -> None:
    prompt = await chat(prompts, "hi")
    text = TEXT_MODEL.tokenizer.decode(prompt.token_ids)
    assert "user\nhi" in text
    assert text.endswith("assistant\n")


async def test_an_answer_without_a_limit_gets_the_default_or_what_is_left(
    prompts: PromptMaker,
) -> None:
    assert (await chat(prompts, "hi")).max_tokens == 20
    long = await chat(prompts, "x" * 70)
    assert long.max_tokens == MODEL.context_tokens - long.num_tokens < 20
    assert (await completion(prompts, "x")).max_tokens == 16


async def test_exactly_the_context_fits_and_one_more_does_not(prompts: PromptMaker) -> None:
    assert (await completion(prompts, "x" * 90, max_tokens=10)).max_tokens == 10
    with pytest.raises(ApiError, match="you requested 101 tokens"):
        await completion(prompts, "x" * 90, max_tokens=11)
    with pytest.raises(ApiError, match="has 100 tokens"):
        await completion(prompts, "x" * 100)


@pytest.mark.parametrize("ids", [[-1], [512], [2**40]])
async def test_token_ids_outside_the_vocabulary_are_refused(
    prompts: PromptMaker, ids: list[int]
) -> None:
    with pytest.raises(ApiError) as caught:
        await completion(prompts, ids)
    assert caught.value.param == "prompt"


async def test_what_no_message_can_hold_is_refused_with_its_size() -> None:
    prompts = PromptMaker(TEXT_MODEL, default_max_tokens=1, max_message_bytes=MESSAGE_ROOM_BYTES)
    with pytest.raises(ApiError) as caught:
        await completion(prompts, "x" * 40)
    assert (caught.value.status, caught.value.code) == (413, "message_too_large")
    assert str(MESSAGE_ROOM_BYTES + 40 * 4 + 32) in caught.value.message
    prompts.close()


@pytest.mark.parametrize(
    ("body", "takes_thread"),
    [
        ({"messages": ["x" * SHORT_CHARS]}, False),
        ({"messages": ["x" * SHORT_CHARS, "y"]}, True),
        ({"messages": ["x"] * (SHORT_PARTS + 1)}, True),
        ({"prompt": ["x" * SHORT_CHARS]}, False),
        ({"prompt": [[1] * (SHORT_CHARS + 1)]}, True),
        ({"prompt": ["x"] * (SHORT_PARTS + 1)}, True),
    ],
)
async def test_only_what_is_short_holds_up_the_loop(
    prompts: PromptMaker,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, Any],
    takes_thread: bool,
) -> None:
    in_thread, used = prompts._in_thread, []

    async def note(make: Any) -> Any:
        used.append(make)
        return await in_thread(make)

    monkeypatch.setattr(prompts, "_in_thread", note)
    model = MODEL.model_copy(update={"context_tokens": 4 * SHORT_CHARS})
    if "messages" in body:
        messages = [{"role": "user", "content": text} for text in body["messages"]]
        raw = json.dumps({"model": "m", "messages": messages, "max_tokens": 1}).encode()
        assert (await prompts.chat(parse_chat(raw), model)).num_tokens
    else:
        raw = json.dumps({"model": "m", "max_tokens": 1, **body}).encode()
        assert len(await prompts.completion(parse_completion(raw), model)) == len(body["prompt"])
    assert bool(used) == takes_thread
