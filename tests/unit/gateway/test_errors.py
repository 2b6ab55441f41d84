"""OpenAI's error objects and statuses."""

import pytest

from services.gateway.errors import ApiError, context_exceeded
from shared.messages.common import ErrorCode, ErrorInfo


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_of_the_cluster_has_a_status(code: ErrorCode) -> None:
    error = ApiError.from_info(ErrorInfo(code=code, message="what happened"))
    assert 400 <= error.status < 600
    body = error.body["error"]
    assert body["message"] == "what happened"
    assert set(body) == {"message", "type", "param", "code"}


def test_what_the_cluster_names_is_told_by_the_clients_name() -> None:
    info = ErrorInfo(code=ErrorCode.UNKNOWN_INSTANCE, message="no such", field="prefill")
    assert ApiError.from_info(info).param == "placement.prefill"


def test_an_internal_error_that_may_pass_is_unavailable() -> None:
    info = ErrorInfo(code=ErrorCode.INTERNAL, message="cut off", is_retryable=True)
    assert ApiError.from_info(info).status == 503


def test_retry_after_is_whole_seconds_where_it_makes_sense() -> None:
    info = ErrorInfo(code=ErrorCode.OVERLOADED, message="full", retry_after_s=1.2)
    assert ApiError.from_info(info).headers == {"retry-after": "2"}
    assert ApiError(503, "away").headers == {"retry-after": "1"}
    assert ApiError(400, "bad").headers == {}


def test_what_does_not_fit_is_told_with_the_counts() -> None:
    prompt = context_exceeded(context_tokens=100, prompt_tokens=120, max_tokens=5, is_chat=True)
    assert "maximum context length is 100 tokens" in prompt.message
    assert "resulted in 120 tokens" in prompt.message
    assert (prompt.param, prompt.code) == ("messages", "context_length_exceeded")
    answer = context_exceeded(context_tokens=100, prompt_tokens=90, max_tokens=20, is_chat=False)
    assert "you requested 110 tokens (90 in the prompt, 20 in the completion)" in answer.message
    assert answer.param == "max_tokens"
