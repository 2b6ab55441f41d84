"""A prefill or decode instance dies in mid-request: the client still gets its whole answer."""

import asyncio
import json

import httpx
import pytest

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from tests.conftest import StartCluster
from tests.support.api import Api, on_nodes
from tests.support.cluster import HostedCluster
from tests.support.deadline import until, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]
PROMPT = list(range(3, 500)) * 3
ANSWER_TOKENS = 400


@pytest.fixture
def cluster(fault_cluster: HostedCluster) -> HostedCluster:
    """Whole again, whatever the test before did to it."""
    fault_cluster.wait_ready()
    return fault_cluster


@pytest.fixture
def api(cluster: HostedCluster) -> Api:
    return api_of(cluster)


def api_of(cluster: HostedCluster) -> Api:
    models = httpx.get(f"{cluster.base_url}/v1/models", timeout=5, trust_env=False).json()
    return Api(cluster.base_url, cluster.admin_key, models["data"][0]["id"])


async def stream(api: Api, client: httpx.AsyncClient, tokens: list[int]) -> tuple[str, int]:
    """Collects the token ids of a streamed answer; returns the finish reason and the attempts."""
    body = api.body(PROMPT, stream=True, max_tokens=ANSWER_TOKENS)
    finish, attempts = "", 0
    async with client.stream(
        "POST", f"{api.base_url}/v1/completions", json=body, headers=api.headers, timeout=90
    ) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            attempts = event.get("moonpool", {}).get("attempts", attempts)
            for choice in event["choices"]:
                tokens.extend(choice.get("token_ids") or [])
                finish = choice["finish_reason"] or finish
    return finish, attempts


def slots_in_use(cluster: HostedCluster) -> dict[str, int]:
    """Slots that are neither free nor plain cache, by node, as the conductor hears it."""
    state = cluster.call(
        cluster.cluster.bus.request(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=5)
    )
    return {n.id: n.slots_writing + n.slots_private + n.slots_leased for n in state.nodes}


@pytest.mark.parametrize("after_tokens", [0, pytest.param(1, marks=pytest.mark.slow), 40])
async def test_decode_is_killed_and_the_stream_goes_on(
    cluster: HostedCluster, api: Api, after_tokens: int
) -> None:
    want = api.complete(PROMPT, cache="off", max_tokens=ANSWER_TOKENS).tokens
    tokens: list[int] = []
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.TaskGroup() as group:
        task = group.create_task(stream(api, client, tokens))
        await until(lambda: len(tokens) >= after_tokens, what="the first tokens", timeout_s=30)
        for name in ("decode-1", "decode-2"):  # whichever of them has the request
            cluster.kill(name)
        finish, attempts = await task
    assert (finish, tokens) == ("length", want)
    assert attempts >= (2 if after_tokens else 1), "the kill came too late to test anything"
    wait_until(lambda: set(slots_in_use(cluster).values()) == {0}, what="no slot is held")


async def test_prefill_is_killed_in_mid_prompt_and_the_client_gets_its_whole_answer(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(model="dummy:small", pool_bytes=256 << 20, decode_tokens=40_000)
    api = api_of(cluster)
    prompts = [list(range(3 + i, 503 + i)) * 8 for i in range(2)]
    scored = [list(range(9, 509)) * 8]
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(api.complete_async(client, prompt, max_tokens=8))
            for prompt in prompts
        ]
        scoring = [group.create_task(score(api, client, prompt)) for prompt in scored]
        await until(lambda: both_prefills_write(cluster), what="both prefills compute")
        cluster.kill("prefill-1")
        cluster.kill("prefill-2")
        answers = [await task for task in tasks]
    assert min(int(answer.served["attempts"]) for answer in answers) >= 2
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == api.complete(prompt, max_tokens=8, cache="off").tokens
    async with httpx.AsyncClient(trust_env=False) as client:
        for prompt, task in zip(scored, scoring, strict=True):
            values, attempts = task.result()
            again, _ = await score(api, client, prompt)
            assert attempts >= 2
            assert len(values) == len(prompt) - 1
            assert values == pytest.approx(again, abs=1e-5)
    wait_until(lambda: set(slots_in_use(cluster).values()) == {0}, what="no slot is held")


async def score(api: Api, client: httpx.AsyncClient, prompt: list[int]) -> tuple[list[float], int]:
    """Log probabilities of a prompt's tokens, and the attempts that it took."""
    body = api.body(prompt, echo=True, logprobs=1, max_tokens=0)
    response = await client.post(
        f"{api.base_url}/v1/completions", json=body, headers=api.headers, timeout=90
    )
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["logprobs"]["token_logprobs"][1:], answer["moonpool"]["attempts"]


async def both_prefills_write(cluster: HostedCluster) -> bool:
    return all((await asyncio.to_thread(slots_in_use, cluster)).values())


async def test_a_stopped_prefill_is_replaced_and_its_late_words_change_nothing(
    cluster: HostedCluster, api: Api
) -> None:
    want = api.complete(PROMPT, cache="off", max_tokens=24, placement=on_nodes(2, 2)).tokens
    cluster.pause("prefill-1")
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            answers = await asyncio.gather(
                *(api.complete_async(client, PROMPT, max_tokens=24) for _ in range(4))
            )
    finally:
        cluster.resume("prefill-1")
    assert all(answer.tokens == want for answer in answers)
    cluster.wait_ready()
    assert api.complete(PROMPT, max_tokens=24).tokens == want
    wait_until(lambda: set(slots_in_use(cluster).values()) == {0}, what="no slot is held")
