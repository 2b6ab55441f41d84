"""OpenAI's error object: what an error of the cluster is over HTTP."""

import math
from typing import Any

from shared.messages.common import ErrorCode, ErrorInfo, Targets
from shared.messages.error_numbers import ERROR_NUMBERS

_OPENAI_CODE: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_MODEL: "model_not_found",
    ErrorCode.CONTEXT_EXCEEDED: "context_length_exceeded",
}
_TYPE: dict[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    503: "service_unavailable_error",
    504: "timeout_error",
}
# What the cluster calls a thing, as the client wrote it.
_PARAM: dict[str, str] = {
    "prefill": "placement.prefill",
    "decode": "placement.decode",
    "num_tokens": "max_tokens",
}
DEFAULT_RETRY_AFTER_S = 1.0


class ApiError(Exception):
    """An answer that is an error, ready to be written as HTTP."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        targets: Targets | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.targets = targets

    @classmethod
    def from_info(cls, info: ErrorInfo) -> "ApiError":
        """The HTTP form of a failure inside the cluster."""
        is_passing = info.code == ErrorCode.INTERNAL and info.is_retryable
        return cls(
            503 if is_passing else ERROR_NUMBERS[info.code],
            info.message,
            param=_PARAM.get(info.field, info.field) if info.field is not None else None,
            code=_OPENAI_CODE.get(info.code, str(info.code)),
            retry_after_s=info.retry_after_s,
            targets=info.targets,
        )

    @property
    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "message": self.message,
            "type": self._type,
            "param": self.param,
            "code": self.code,
        }
        if self.targets is not None:
            error["targets"] = targets_for_client(self.targets)
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds wherever another try later makes sense."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.status not in (429, 503):
            return {}
        wait_s = self.retry_after_s if self.retry_after_s is not None else DEFAULT_RETRY_AFTER_S
        return {"retry-after": str(max(1, math.ceil(wait_s)))}

    @property
    def _type(self) -> str:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPE.get(self.status, fallback)


def targets_for_client(targets: Targets) -> dict[str, float | None]:
    """In milliseconds, as a request gives its own targets."""
    return {
        name.removesuffix("_s") + "_ms": None if value is None else round(value * 1_000, 3)
        for name, value in targets.model_dump().items()
    }


def bad_request(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_exceeded(
    *, context_tokens: int, prompt_tokens: int, max_tokens: int | None, is_chat: bool
) -> ApiError:
    """OpenAI's wording: with the length of the answer when that is what does not fit."""
    what = "messages" if is_chat else "prompt"
    start = f"This model's maximum context length is {context_tokens} tokens. However, "
    if max_tokens is None or prompt_tokens >= context_tokens:
        verb = "resulted in" if is_chat else "has"
        middle = f"your {what} {verb} {prompt_tokens} tokens. "
        end = f"Please reduce the length of the {what}."
        param = "messages" if is_chat else "prompt"
    else:
        middle = (
            f"you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {what}, "
            f"{max_tokens} in the completion). "
        )
        end = f"Please reduce the length of the {what} or completion."
        param = "max_tokens"
    return bad_request(param, start + middle + end, code="context_length_exceeded")
