"""`echo` with `logprobs`, and `max_tokens: 0`, over real HTTP and NATS."""

import asyncio
from typing import Any

import openai
import pytest

from tests.integration.gateway.conftest import Rig
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL

pytestmark = pytest.mark.integration
PROMPT = "Say: "
SCORES = [None, -1.0, -2.0, -3.0, -4.0]
OFFSETS = [0, 1, 2, 3, 4]


async def score(rig: Rig, prompt: Any = PROMPT, **more: Any) -> Any:
    fields = {"echo": True, "logprobs": 1, "max_tokens": 0, **more}
    body = {"model": MODEL, "prompt": prompt, **fields}
    return await rig.http.post("/v1/completions", json=body, headers={"x-moonpool-bill": "1"})


def check_prompt(choice: Any, text: str = PROMPT) -> None:
    """The part of the answer that is of the prompt."""
    found, size = choice["logprobs"], len(text)
    assert choice["text"].startswith(text)
    assert found["tokens"][:size] == list(text)
    assert found["token_logprobs"][:size] == [None, *(-float(n) for n in range(1, size))]
    assert found["text_offset"][:size] == list(range(size))
    assert found["top_logprobs"][0] is None
    for place, named in enumerate(found["top_logprobs"][1:size], 1):
        likelier = chr(ord(text[place]) + 1)
        assert named == {likelier: -place / 2, text[place]: -float(place)}


async def test_a_prompt_is_scored_without_decode(rig: Rig) -> None:
    response = await score(rig)
    assert response.status_code == 200, response.text
    body = response.json()
    (choice,) = body["choices"]
    check_prompt(choice)
    assert choice["text"] == PROMPT
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT)
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens"] == len(PROMPT)
    assert body["moonpool"]["decode"] is None
    assert body["moonpool"]["scored_tokens"] == 1
    (place,) = rig.cluster.places
    assert (place.max_tokens, place.cache) == (0, "write")
    (run,) = rig.cluster.get("p0").runs
    assert (run.decode, run.prompt_logprobs, run.cache) == (None, 1, "write")
    assert rig.cluster.get("d0").runs == []
    assert rig.cluster.get("d0").cancels == []


async def test_generated_tokens_follow_the_prompts(rig: Rig) -> None:
    (choice,) = (await score(rig, max_tokens=5)).json()["choices"]
    check_prompt(choice)
    assert choice["text"] == PROMPT + "Hello"
    found = choice["logprobs"]
    assert found["tokens"] == [*PROMPT, *"Hello"]
    assert found["text_offset"] == list(range(10))
    assert found["token_logprobs"][5:] == [-1.0 - ord(char) for char in "Hello"]
    decode_run = rig.cluster.get("d0").runs[0]
    assert decode_run.cache == "on"


async def test_as_lm_evaluation_harness_asks(rig: Rig) -> None:
    """Batches of token ids, one token too many, and the sum over the continuation's tokens."""
    prompts = [[*b"A B C"], [*b"DE"]]
    body = (await score(rig, prompts, max_tokens=1, temperature=0, seed=1234)).json()
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    for choice, prompt, context in zip(choices, prompts, (3, 1), strict=True):
        check_prompt(choice, bytes(prompt).decode())
        logprobs = choice["logprobs"]["token_logprobs"][context:-1]
        assert logprobs == [-float(place) for place in range(context, len(prompt))]
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        assert all(one < max(top.values()) for one, top in zip(logprobs, tops, strict=True))
        assert len(choice["logprobs"]["tokens"]) == len(prompt) + 1
    assert rig.cluster.get("d0").runs == []  # token 0 is prefill's


async def test_all_choices_of_a_prompt_tell_what_the_first_one_found(rig: Rig) -> None:
    body = (await score(rig, ["Say: ", "Go"], n=2, max_tokens=3)).json()
    assert [choice["text"] for choice in body["choices"]] == ["Say: Hel"] * 2 + ["GoHel"] * 2
    for choice, text in zip(body["choices"], ("Say: ", "Say: ", "Go", "Go"), strict=True):
        check_prompt(choice, text)
        assert len(choice["logprobs"]["tokens"]) == len(text) + 3
    wished = [run.prompt_logprobs for run in rig.cluster.get("p0").runs]
    assert sorted(wished, key=str) == [1, 1, None, None]


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_a_stream_begins_with_the_whole_prompt(rig: Rig, max_tokens: int) -> None:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="any") as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            echo=True,
            logprobs=1,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk.model_dump() async for chunk in stream]
    *parts, usage = chunks
    check_prompt(parts[0]["choices"][0])
    assert "".join(part["choices"][0]["text"] for part in parts) == PROMPT + "Hel"[:max_tokens]
    tokens = [token for part in parts for token in _tokens_of(part)]
    assert tokens == [*PROMPT, *"Hel"[:max_tokens]]
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == max_tokens


async def test_no_likely_tokens_are_told_when_none_are_asked_for(rig: Rig) -> None:
    found = (await score(rig, logprobs=0)).json()["choices"][0]["logprobs"]
    assert found["token_logprobs"] == SCORES
    assert found["top_logprobs"][1:] == [{"a": -1.0}, {"y": -2.0}, {":": -3.0}, {" ": -4.0}]


async def test_a_prompt_of_one_token_has_nothing_to_score(rig: Rig) -> None:
    (choice,) = (await score(rig, "S")).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["S"],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [0],
    }


async def test_echo_alone_computes_the_prompt_for_the_cache(rig: Rig) -> None:
    (choice,) = (await score(rig, logprobs=None)).json()["choices"]
    assert (choice["text"], choice["logprobs"]) == (PROMPT, None)
    (place,) = rig.cluster.places
    assert (place.max_tokens, place.cache) == (0, "on")


async def test_without_a_cache_nothing_is_published_either(rig: Rig) -> None:
    check_prompt((await score(rig, cache="off")).json()["choices"][0])
    assert rig.cluster.places[0].cache == "off"
    assert rig.cluster.get("p0").runs[0].cache == "off"


async def test_pieces_of_a_prefill_that_dies_are_not_mixed_with_the_next_ones(rig: Rig) -> None:
    rig.cluster.get("p0").dies_after_pieces = 1
    response = await score(rig, max_tokens=2)
    assert response.status_code == 200
    check_prompt(response.json()["choices"][0])
    assert response.json()["moonpool"]["attempts"] == 2
    assert rig.cluster.places[1].exclude == ["p0-i"]
    (run,) = rig.cluster.get("p1").runs
    assert run.prompt_logprobs == 1


async def test_a_lost_piece_is_made_again(rig: Rig) -> None:
    rig.cluster.get("p0").drops_piece = 1
    response = await score(rig)
    check_prompt(response.json()["choices"][0])
    assert response.json()["moonpool"]["attempts"] == 2


async def test_a_resume_scores_nothing_again(rig: Rig) -> None:
    rig.cluster.get("d0").dies_after = 3
    response = await score(rig, max_tokens=5)
    (choice,) = response.json()["choices"]
    check_prompt(choice)
    assert choice["text"] == PROMPT + "Hello"
    assert len(choice["logprobs"]["tokens"]) == 10
    first, second = rig.cluster.get("p0").runs
    assert (first.prompt_logprobs, second.prompt_logprobs) == (1, None)
    assert (first.cache, second.cache) == ("write", "on")


async def test_a_client_that_leaves_ends_the_scoring(rig: Rig) -> None:
    prefill = rig.cluster.get("p0")
    prefill.open.clear()
    asking = asyncio.ensure_future(score(rig))
    await until(lambda: prefill.runs, what="prefill runs")
    asking.cancel()
    await until(lambda: prefill.cancels, what="prefill is told")
    await until(lambda: rig.service.num_in_flight == 0, what="nothing is in flight")
    prefill.open.set()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": False}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": False}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": [[1] * 400] * 64, "logprobs": 20, "n": 2}, "logprobs"),
        ({"prompt": [1] * 513}, "prompt"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_name(
    rig: Rig, fields: dict[str, Any], param: str
) -> None:
    response = await score(rig, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert rig.cluster.places == []


async def test_a_prompt_that_fills_the_context_can_be_scored(rig: Rig) -> None:
    assert (await score(rig, [7] * 512)).status_code == 200
    assert (await score(rig, [7] * 512, max_tokens=1)).status_code == 400


def _tokens_of(chunk: Any) -> list[str]:
    logprobs = chunk["choices"][0]["logprobs"]
    return [] if logprobs is None else list(logprobs["tokens"])
