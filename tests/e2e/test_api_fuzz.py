"""The API against its own OpenAPI document: whatever is sent, the answer is as it says."""

from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from services.gateway.openapi import openapi_document
from tests.conftest import FEW_TOKENS
from tests.support.cluster import DUMMY_MODEL, HostedCluster

pytestmark = pytest.mark.e2e
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)
OPERATIONS = [
    (method, path)
    for path, methods in openapi_document([DUMMY_MODEL], needs_key=False)["paths"].items()
    for method in methods
]
# Without a body or a parameter there is one question; with a bad one of these there is none.
CASES = [
    (method, path, mode, 15 if method == "post" or "{" in path else 1)
    for method, path in OPERATIONS
    for mode in GenerationMode
    if method == "post" or mode is GenerationMode.POSITIVE
]


@pytest.fixture(scope="module")
def api_schema(dummy_cluster: HostedCluster) -> Any:
    return schemathesis.openapi.from_url(f"{dummy_cluster.base_url}/openapi.json")


def shortened(body: Any) -> Any:
    """A long answer or many choices say no more than a short one."""
    if not isinstance(body, dict):
        return body
    for field in ("max_tokens", "max_completion_tokens"):
        if type(body.get(field)) is int and body[field] > FEW_TOKENS:
            body[field] = FEW_TOKENS
    if type(body.get("n")) is int and 2 < body["n"] <= 16:
        body["n"] = 2
    return body


def fuzz(schema: Any, method: str, path: str, mode: GenerationMode, num_examples: int) -> None:
    operation = schema[path][method]

    @hypothesis.settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def answers_as_it_says(case: Any) -> None:
        case.body = shortened(case.body)
        case.call_and_validate(checks=CHECKS, timeout=30)

    answers_as_it_says()


@pytest.mark.parametrize(("method", "path", "mode", "num_examples"), CASES)
@pytest.mark.timeout(120)
def test_every_answer_is_as_the_document_says(
    api_schema: Any, method: str, path: str, mode: GenerationMode, num_examples: int
) -> None:
    fuzz(api_schema, method, path, mode, num_examples)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "post"])
@pytest.mark.timeout(600)
def test_every_answer_is_as_the_document_says_for_long(
    api_schema: Any, path: str, mode: GenerationMode
) -> None:
    fuzz(api_schema, "post", path, mode, 400)


def test_the_cluster_serves_after_all_that(dummy_cluster: HostedCluster) -> None:
    body = {"model": DUMMY_MODEL, "prompt": "hello", "max_tokens": 2}
    url = f"{dummy_cluster.base_url}/v1/completions"
    answer = httpx.post(url, json=body, timeout=30, trust_env=False)
    assert answer.status_code == 200
    assert not dummy_cluster.deaths
