"""HTTP in, tokens out through every service, with the real model and its greedy tokens."""

import random

import httpx
import openai
import pytest

from tests.support.api import Api, on_nodes
from tests.support.cluster import HostedCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
MODEL = "SmolLM2-135M-Instruct"
GRID = 256


@pytest.fixture(scope="module")
def api(real_cluster: HostedCluster) -> Api:
    return Api(real_cluster.base_url, real_cluster.admin_key, MODEL)


def prompt_of(seed: int, tokens: int) -> list[int]:
    """A prompt of exactly this many tokens that nobody else uses."""
    return [random.Random(seed).randrange(1000, 40_000) for _ in range(tokens)]


def test_a_hit_of_every_kind_gives_the_tokens_of_the_cold_run(api: Api) -> None:
    prompt = prompt_of(1, 2 * GRID + 40)
    cold = api.complete(prompt, cache="off", placement=on_nodes(1, 1))
    assert (cold.cached_tokens, cold.cached_from) == (0, "none")
    first = api.complete(prompt, placement=on_nodes(1, 1))
    assert (first.cached_tokens, first.cached_from) == (0, "none")
    assert first.served["bytes_moved"] == 0
    local = api.complete(prompt, placement=on_nodes(1, 1))
    assert (local.cached_tokens, local.cached_from) == (2 * GRID, "local")
    assert local.served["bytes_moved"] == 0
    remote = api.complete(prompt, placement=on_nodes(2, 2))
    assert (remote.cached_tokens, remote.cached_from) == (2 * GRID, "remote")
    assert remote.served["fetched_bytes"] >= 2 * GRID * 46_080
    assert first.tokens == local.tokens == remote.tokens == cold.tokens
    assert len(cold.tokens) == 16


def test_decode_on_another_node_gives_the_same_tokens_and_moves_the_kv(api: Api) -> None:
    prompt = prompt_of(2, 2 * GRID + 7)
    cold = api.complete(prompt, cache="off", placement=on_nodes(1, 1))
    across = api.complete(prompt, placement=on_nodes(1, 2))
    assert across.tokens == cold.tokens
    assert across.served["prefill"] == "prefill-1"
    assert across.served["decode"] == "decode-2"
    assert across.served["streamed_bytes"] >= (2 * GRID + 7) * 46_080


@pytest.mark.parametrize(
    "tokens",
    [1, 255, GRID, *(pytest.param(n, marks=pytest.mark.slow) for n in (GRID + 1, 2 * GRID))],
)
def test_a_full_hit_computes_the_last_chunk_again(api: Api, tokens: int) -> None:
    prompt = prompt_of(100 + tokens, tokens)
    cold = api.complete(prompt, cache="off")
    first = api.complete(prompt, placement=on_nodes(2, 1))
    again = api.complete(prompt, placement=on_nodes(2, 1))
    assert again.cached_tokens == (tokens - 1) // GRID * GRID
    assert again.tokens == first.tokens == cold.tokens


def test_a_shared_prefix_is_reused_by_a_prompt_that_goes_on_differently(api: Api) -> None:
    prefix = prompt_of(3, 2 * GRID)
    api.complete(prefix + prompt_of(4, 30))
    other = prefix + prompt_of(5, 300)
    warm = api.complete(other)
    assert warm.cached_tokens == 2 * GRID
    assert warm.tokens == api.complete(other, cache="off").tokens


def test_the_openai_client_chats_and_streams_the_same_text(real_cluster: HostedCluster) -> None:
    with openai.OpenAI(base_url=f"{real_cluster.base_url}/v1", api_key="unused") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        messages = [{"role": "user", "content": "Name three colours."}]
        whole = client.chat.completions.create(
            model=MODEL,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=24,
            temperature=0,
        )
        stream = client.chat.completions.create(
            model=MODEL,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []


def test_a_seeded_sample_is_the_same_again_whatever_is_cached(api: Api) -> None:
    prompt = prompt_of(6, GRID + 20)
    sampled = [
        api.complete(prompt, temperature=1.0, seed=11, cache=cache).tokens
        for cache in ("off", "on", "on")
    ]
    assert sampled[0] == sampled[1] == sampled[2]
    assert api.complete(prompt, temperature=1.0, seed=12).tokens != sampled[0]


def test_the_bill_says_where_time_and_bytes_went(api: Api) -> None:
    answer = api.complete(prompt_of(7, GRID + 5), placement=on_nodes(1, 2))
    real = answer.served["bill"]["real"]
    assert answer.served["ttft_s"] >= real["compute_s"] > 0
    assert answer.served["bill"]["predicted"]["ttft_s"] > 0
    kept = httpx.get(
        f"{api.base_url}/v1/bills/{answer.served['request_id']}",
        headers=api.headers,
        trust_env=False,
    )
    assert kept.status_code == 200
    assert kept.json()["reuse"]["prompt_tokens"] == GRID + 5
