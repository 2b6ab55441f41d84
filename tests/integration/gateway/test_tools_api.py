"""Tokens of a text, text of tokens, where a request would run: over real HTTP and NATS."""

import threading
from typing import Any

import pytest

from shared.checkpoint.tokenizer import TextTokenizer
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef
from shared.messages.conductor import Candidate
from tests.integration.gateway.conftest import Rig
from tests.support.fake_cluster import CONTEXT_TOKENS, MODEL, PREDICTED

pytestmark = pytest.mark.integration


async def post(rig: Rig, path: str, **body: Any) -> Any:
    return await rig.http.post(path, json=body)


async def test_tokens_go_there_and_back(rig: Rig) -> None:
    made = (await post(rig, "/tokenize", model=MODEL, prompt="Hé", return_token_strs=True)).json()
    assert made["tokens"] == [*"Hé".encode()]
    assert (made["count"], made["max_model_len"]) == (3, CONTEXT_TOKENS)
    assert len(made["token_strs"]) == 3
    back = (await post(rig, "/detokenize", tokens=made["tokens"])).json()
    assert back == {"prompt": "Hé"}


async def test_many_tokens_are_written_beside_the_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def token(_self: TextTokenizer, _token_id: int) -> str:
        threads.add(threading.get_ident())
        return "x"

    monkeypatch.setattr(TextTokenizer, "token", token)
    made = await post(rig, "/tokenize", prompt="a" * 1_000, return_token_strs=True)
    assert made.json()["token_strs"] == ["x"] * 1_000
    assert threads
    assert threading.get_ident() not in threads


async def test_a_chat_is_tokenised_as_it_would_be_asked(rig: Rig) -> None:
    messages = [{"role": "user", "content": "hi"}]
    made = (await post(rig, "/tokenize", messages=messages, add_generation_prompt=True)).json()
    asked = {"model": MODEL, "messages": messages, "return_token_ids": True}
    answer = (await rig.http.post("/v1/chat/completions", json=asked)).json()
    assert made["tokens"] == answer["prompt_token_ids"]
    assert made["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "more": 1}, 400, "more"),
        ("/tokenize", {"messages": [], "add_generation_prompt": True}, 400, "messages"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False},
            400,
            "add_generation_prompt",
        ),
        ("/detokenize", {"tokens": [99_999]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, 400, "tokens"),
        ("/v1/explain", {"model": MODEL}, 400, "prompt"),
        ("/v1/explain", {"model": MODEL, "prompt": "a", "policy": "x"}, 403, "policy"),
    ],
)
async def test_what_is_wrong_is_named(
    rig: Rig, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    response = await post(rig, path, **body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


async def test_explain_tells_every_candidate_and_runs_nothing(rig: Rig) -> None:
    other = InstanceRef(id="p1", incarnation="i", node="n1")
    rig.cluster.losers = [
        Candidate(
            prefill=other, local_blocks=0, remote_blocks=2, predicted=PREDICTED, reason="slower"
        )
    ]
    told = (await post(rig, "/v1/explain", model=MODEL, prompt=[1] * 40, max_tokens=5)).json()
    assert (told["prompt_tokens"], told["prompt_blocks"], told["max_tokens"]) == (40, 2, 5)
    assert [one["prefill"] for one in told["candidates"]] == ["p0", "p1"]
    assert [one["is_chosen"] for one in told["candidates"]] == [True, False]
    assert told["candidates"][1]["reason"] == "slower"
    assert told["candidates"][0]["predicted"]["ttft_s"] == 0.3
    assert [one["predicted"]["tbt_s"] for one in told["candidates"]] == [0.0, None]
    assert (told["policy"], told["decode"], told["refusal"]) == ("fake", "d0", None)
    messages = [{"role": "user", "content": "hi"}]
    assert (await post(rig, "/v1/explain", model=MODEL, messages=messages)).status_code == 200
    assert not rig.cluster.get("p0").runs
    assert rig.service.num_in_flight == 0


async def test_explain_says_why_a_request_would_be_refused(rig: Rig) -> None:
    rig.cluster.refusal = ErrorInfo(code=ErrorCode.OVERLOADED, message="full", is_retryable=True)
    response = await post(rig, "/v1/explain", model=MODEL, prompt="a")
    assert response.status_code == 200
    told = response.json()
    assert told["refusal"]["message"] == "full"
    assert told["candidates"] == []
