"""Who is let in: refusals before any work starts.

What is predicted to miss its targets is refused, by one of the paper's rules. `baseline` looks at
the prefill side alone; decode is judged by the decode instance after the prefill, which is wasted
when it refuses. `early_rejection` judges decode as it is now. `predicted` judges it as it will be
when the prefill is done.
"""

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.slo import NO_SLO, Slo, would_miss
from shared.scheduling.vocabulary import (
    PlacementRequest,
    PredictedTimes,
    Priority,
    Refusal,
    Role,
)

AdmissionRule = Literal["baseline", "early_rejection", "predicted"]
ADMISSION_RULES: tuple[AdmissionRule, ...] = get_args(AdmissionRule)
DEFAULT_RULE: AdmissionRule = "predicted"
SHARE_BY_PRIORITY: dict[Priority, float] = {"low": 0.8, "normal": 1.0, "high": 1.25}
"""Of the targets, how far a class may go: low goes first, high is rather late than refused."""
MAX_RETRY_S = 30.0

MAX_OVERHEAD_SHARE = 0.25
"""Of a TTFT target: so much of what is learnt of messages may speak against a request."""
RETRY_NO_INSTANCE_S = 1.0
RETRY_FULL_S = 1.0


def refuse_request(
    request: PlacementRequest, view: ClusterView, policies: Collection[str]
) -> Refusal | None:
    """What no waiting can mend: a model that was never served, an id that does not exist."""
    if request.policy is not None and request.policy not in policies:
        known = ", ".join(policies)
        return Refusal("bad_request", f"policy: {request.policy!r} is none of {known}", "policy")
    if not view.knows_model(request.model):
        if view.models:
            served = ", ".join(view.models)
            return Refusal(
                "unknown_model", f"model {request.model!r} is not served here ({served})", "model"
            )
        return Refusal(
            "no_instance",
            "no prefill or decode instance has reported yet; try again when one is up",
            is_retryable=True,
            retry_after_s=RETRY_NO_INSTANCE_S,
        )
    insisted: tuple[tuple[Role, str | None], ...] = (
        ("prefill", request.prefill),
        ("decode", request.decode),
    )
    for role, instance_id in insisted:
        if instance_id is not None and view.with_id(role, instance_id) is None:
            known = ", ".join(seen.view.id for seen in view.of_role(role)) or "none"
            return Refusal(
                "unknown_instance",
                f"{role}: there is no {role} instance {instance_id!r} (known: {known})",
                role,
            )
    return None


def refuse_role(
    role: Role,
    request: PlacementRequest,
    counts: Mapping[str, int],
    retry_after_s: float | None,
) -> Refusal:
    """Nobody of this role can take the request now; says why and when to come back."""
    seen = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    if counts.get("refused") or counts.get("full"):
        return Refusal(
            "overloaded",
            f"no {role} instance has room now ({seen})",
            is_retryable=True,
            retry_after_s=retry_after_s or RETRY_FULL_S,
        )
    serving = sum(counts.values()) - _sum_of(counts, "other_model", "not_insisted")
    if serving and serving == _sum_of(counts, "context", "too_small"):
        return Refusal(
            "context_exceeded",
            f"num_tokens: {request.num_tokens} prompt and {request.max_tokens} answer tokens are "
            f"more than any {role} instance of {request.model} holds",
            "num_tokens",
        )
    insisted = request.prefill if role == "prefill" else request.decode
    which = f"{role} instance {insisted}" if insisted is not None else f"{role} instance"
    return Refusal(
        "no_instance",
        f"no {which} of {request.model} is ready ({seen or 'none known'})",
        field=role if insisted is not None else None,
        is_retryable=True,
        retry_after_s=RETRY_NO_INSTANCE_S,
    )


def _sum_of(counts: Mapping[str, int], *reasons: str) -> int:
    return sum(counts.get(reason, 0) for reason in reasons)


def allowed_for(slo: Slo, priority: Priority) -> Slo:
    if slo is NO_SLO:
        return slo
    share = SHARE_BY_PRIORITY[priority]
    return Slo(
        None if slo.ttft_s is None else slo.ttft_s * share,
        None if slo.tbt_s is None else slo.tbt_s * share,
    )


def refuse_slow(
    predicted: PredictedTimes, allowed: Slo, rule: AdmissionRule, decode_time_s: float
) -> Refusal | None:
    """A target that would be missed, with both figures and when it is worth another try."""
    ttft_s, tbt_s = predicted.ttft_s, predicted.tbt_s
    if allowed.ttft_s is not None:
        # What messages cost is learnt from answers: alone it must not end them for good.
        ttft_s -= max(0.0, predicted.overhead_s - allowed.ttft_s * MAX_OVERHEAD_SHARE)
    seen = Slo(ttft_s, tbt_s)
    if allowed.ttft_s is not None and ttft_s > allowed.ttft_s:
        message = would_miss("TTFT", ttft_s, allowed.ttft_s)
        # Queues run off in real time: so long until this one would be in time.
        return _overloaded(message, ttft_s - allowed.ttft_s, seen, allowed)
    return None if rule == "baseline" else refuse_slow_decode(seen, allowed, decode_time_s)


def judged_after_prefill(role: Role, allowed: Slo, rule: AdmissionRule) -> float | None:
    """The TBT target (seconds) that is left to decode to judge by; None: nothing is."""
    return allowed.tbt_s if rule == "baseline" and role == "prefill" else None


def refuse_slow_decode(predicted: Slo, allowed: Slo, decode_time_s: float) -> Refusal | None:
    """Steps that would be too long for it: asked of a conductor when a request comes, or under
    `baseline` of a decode instance when its prefill is done."""
    tbt_s, allowed_s = predicted.tbt_s, allowed.tbt_s
    if tbt_s is None or allowed_s is None or tbt_s <= allowed_s:
        return None
    message = would_miss("TBT", tbt_s, allowed_s)
    # Batches shrink as answers end, all of them once in `decode_time_s`.
    return _overloaded(message, decode_time_s * (1 - allowed_s / tbt_s), predicted, allowed)


def refuse_full_decode(
    missing_tokens: int, predicted: Slo, allowed: Slo, decode_time_s: float
) -> Refusal:
    """Answers grew over what was promised to them: this one would wait outside of the batch."""
    message = f"decode lacks room for {missing_tokens} tokens of answers"
    return _overloaded(message, decode_time_s, predicted, allowed)


def _overloaded(message: str, retry_s: float, predicted: Slo, allowed: Slo) -> Refusal:
    return Refusal(
        "overloaded",
        f"{message}; come back later or ask for less",
        is_retryable=True,
        retry_after_s=min(max(retry_s, RETRY_FULL_S), MAX_RETRY_S),
        predicted=predicted,
        allowed=allowed,
    )
