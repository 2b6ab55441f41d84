"""Who is let in: refusals before any work starts. Rejection by SLO has its place here too."""

from collections import Counter

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.vocabulary import PlacementRequest, Refusal, Role

RETRY_NO_INSTANCE_S = 1.0
RETRY_FULL_S = 1.0


def refuse_request(request: PlacementRequest, view: ClusterView) -> Refusal | None:
    """What no waiting can mend: a model that was never served, an id that does not exist."""
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
    counts: Counter[str],
    retry_after_s: float | None,
) -> Refusal:
    """Nobody of this role can take the request now; says why and when to come back."""
    seen = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    if counts["refused"] + counts["full"]:
        return Refusal(
            "overloaded",
            f"no {role} instance has room now ({seen})",
            is_retryable=True,
            retry_after_s=retry_after_s or RETRY_FULL_S,
        )
    serving = counts.total() - counts["other_model"] - counts["not_insisted"]
    if serving and serving == counts["context"] + counts["too_small"]:
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
