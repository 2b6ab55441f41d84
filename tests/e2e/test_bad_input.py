"""What is wrong with a request is said with the right status and the field's name."""

from typing import Any

import httpx
import pytest

from tests.support.cluster import DUMMY_MODEL, HostedCluster

pytestmark = pytest.mark.e2e


def post(cluster: HostedCluster, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else None
    return httpx.post(
        f"{cluster.base_url}{path}",
        json=None if content is not None else body,
        content=content,
        timeout=30,
        trust_env=False,
    )


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 2}, 400, "top_p"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"logit_bias": {"1": 500}}, 400, "logit_bias"),
        ({"suffix": "end"}, 400, "suffix"),
        ({"unheard_of": 1}, 400, "unheard_of"),
        ({"n": 99}, 400, "n"),
        ({"best_of": 2}, 400, "best_of"),
        ({"echo": True, "logprobs": 21}, 400, "logprobs"),
        ({"max_tokens": 0, "logprobs": 1}, 400, "max_tokens"),
        ({"policy": "random"}, 403, "policy"),
        ({"model": "no-such-model"}, 404, "model"),
        ({"placement": {"prefill": "prefill-1"}}, 403, "placement"),
    ],
)
def test_a_bad_field_is_named(
    dummy_cluster: HostedCluster, change: dict[str, Any], status: int, param: str
) -> None:
    good = {"model": model_of(dummy_cluster), "prompt": "hello", "max_tokens": 2}
    assert post(dummy_cluster, "/v1/completions", good).status_code == 200
    response = post(dummy_cluster, "/v1/completions", {**good, **change})
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


def test_a_prompt_longer_than_the_context_is_refused_with_the_counts(
    dummy_cluster: HostedCluster,
) -> None:
    body = {"model": model_of(dummy_cluster), "prompt": [5] * 3000, "max_tokens": 2}
    response = post(dummy_cluster, "/v1/completions", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "2048" in error["message"]
    assert "3000" in error["message"] or "3002" in error["message"]


def test_a_body_that_is_no_json_is_a_400(dummy_cluster: HostedCluster) -> None:
    response = post(dummy_cluster, "/v1/chat/completions", b"{nonsense")
    assert response.status_code == 400
    assert "error" in response.json()


def test_health_live_and_ready_answer(dummy_cluster: HostedCluster) -> None:
    for path in ("/health", "/live", "/ready"):
        url = f"{dummy_cluster.base_url}{path}"
        assert httpx.get(url, timeout=5, trust_env=False).status_code == 200


def model_of(cluster: HostedCluster) -> str:
    listed = httpx.get(f"{cluster.base_url}/v1/models", timeout=5, trust_env=False).json()
    name = str(listed["data"][0]["id"])
    assert DUMMY_MODEL.endswith(name.removeprefix("dummy:").removeprefix("dummy-"))
    return name
