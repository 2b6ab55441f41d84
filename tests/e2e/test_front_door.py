"""What the API has beyond OpenAI's, on a real cluster: salts, shared prompts, explain, targets."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import Api
from tests.support.cluster import DUMMY_MODEL, HostedCluster

pytestmark = pytest.mark.e2e
GRID = 256


@pytest.fixture(scope="module")
def api(dummy_cluster: HostedCluster) -> Api:
    return Api(dummy_cluster.base_url, dummy_cluster.admin_key, DUMMY_MODEL)


@pytest.fixture(scope="module")
def http(dummy_cluster: HostedCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=dummy_cluster.base_url, timeout=30, trust_env=False) as client:
        yield client


def prompt(number: int) -> list[int]:
    """Three chunks of the grid and a little, of its own for each test."""
    return [5 + number, *range(10, 250), *range(10, 250), *range(10, 250), *range(10, 100)]


def test_a_salt_shares_with_itself_only_and_changes_no_token(api: Api) -> None:
    cold = api.complete(prompt(1), cache="off").tokens
    for salt, is_hit in ((None, False), ("a", False), ("a", True), ("b", False), (None, True)):
        answer = api.complete(prompt(1), cache_salt=salt)
        assert answer.tokens == cold
        assert (answer.cached_tokens > 0) is is_hit, salt


def test_choices_find_the_prompt_that_the_first_has_computed(api: Api, http: httpx.Client) -> None:
    body = api.body(prompt(2), n=3, temperature=1, seed=11, max_tokens=4)
    answer = http.post("/v1/completions", json=body, headers=api.headers).json()
    cached = [choice["moonpool"]["cached_tokens"] for choice in answer["choices"]]
    assert cached[0] == 0
    assert all(tokens >= 3 * GRID for tokens in cached[1:])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = http.post("/v1/completions", json=body, headers=api.headers).json()
    tokens = [choice["token_ids"] for choice in answer["choices"]]
    assert [choice["token_ids"] for choice in again["choices"]] == tokens


def test_explain_tells_what_is_then_done(api: Api, http: httpx.Client) -> None:
    served = api.complete(prompt(3)).served
    body = {"model": DUMMY_MODEL, "prompt": prompt(3), "max_tokens": 4}

    def explain(**more: Any) -> dict[str, Any]:
        answer = http.post("/v1/explain", json={**body, **more}, headers=api.headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    told = explain()
    assert {one["prefill"] for one in told["candidates"]} == {"prefill-1", "prefill-2"}
    holder = next(one for one in told["candidates"] if one["prefill"] == served["prefill"])
    assert holder["local_blocks"] == told["prompt_blocks"] == 3
    assert [one["is_chosen"] for one in told["candidates"]] == [True, False]
    assert told["candidates"][1]["reason"]
    assert explain(cache_salt="x")["candidates"][0]["local_blocks"] == 0
    refused = explain(ttft_slo_ms=1e-3)
    assert refused["refusal"]["code"] == "overloaded"
    assert refused["targets"]["predicted_ttft_ms"] > refused["targets"]["allowed_ttft_ms"]
    pinned = explain(placement={"prefill": "prefill-2"}, policy="random")
    assert (pinned["policy"], pinned["candidates"][0]["prefill"]) == ("random", "prefill-2")
