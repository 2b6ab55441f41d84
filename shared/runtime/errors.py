"""The error that services raise, send and receive; ErrorInfo is its form on the wire."""

from typing import Self

from shared.messages.common import ErrorCode, ErrorInfo


class ServiceError(Exception):
    """An expected failure with a code, a sentence to act on, and whether to try again."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str | None = None,
        is_retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.is_retryable = is_retryable
        self.retry_after_s = retry_after_s

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(
            code=self.code,
            message=self.message,
            field=self.field,
            is_retryable=self.is_retryable,
            retry_after_s=self.retry_after_s,
        )

    @classmethod
    def from_info(cls, info: ErrorInfo) -> Self:
        return cls(
            info.code,
            info.message,
            field=info.field,
            is_retryable=info.is_retryable,
            retry_after_s=info.retry_after_s,
        )


class NoResponder(ServiceError):
    """Nobody listens on the subject: the process that should is gone."""

    def __init__(self, subject: str) -> None:
        super().__init__(ErrorCode.NO_INSTANCE, f"nobody answers on {subject}", is_retryable=True)


class BusTimeout(ServiceError):
    """No answer in time: the other side is slow, stopped or cut off."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        super().__init__(
            ErrorCode.DEADLINE, f"no answer on {subject} within {timeout_s:g} s", is_retryable=True
        )
