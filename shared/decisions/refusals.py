"""A refusal as it is on the wire."""

from shared.messages.common import ErrorCode, ErrorInfo, Targets
from shared.scheduling.slo import NO_SLO
from shared.scheduling.vocabulary import Refusal


def error_info(refusal: Refusal) -> ErrorInfo:
    """Without its targets, which a placement's answer has beside it."""
    return ErrorInfo(
        code=ErrorCode(refusal.code),
        message=refusal.message,
        field=refusal.field,
        is_retryable=refusal.is_retryable,
        retry_after_s=refusal.retry_after_s,
    )


def targets_of(refusal: Refusal) -> Targets | None:
    """Both sides of the comparison, when it was refused for its targets."""
    if refusal.allowed == NO_SLO:
        return None
    return Targets(
        predicted_ttft_s=refusal.predicted.ttft_s,
        predicted_tbt_s=refusal.predicted.tbt_s,
        allowed_ttft_s=refusal.allowed.ttft_s,
        allowed_tbt_s=refusal.allowed.tbt_s,
    )
