"""One request as the cluster sees it, fixed before it starts."""

from dataclasses import dataclass

from services.gateway.body_parts import Priority
from shared.messages.common import CacheMode, Sampling

LEAST_TARGET_MS = 0.001
"""A target that has passed already: nobody keeps it."""


@dataclass(frozen=True, slots=True)
class Job:
    request_id: str
    client_id: str  # what the client calls it; not unique
    model: str
    packed_tokens: bytes
    num_tokens: int
    chain: bytes
    sampling: Sampling
    cache: CacheMode
    prefill: str | None  # instances the client insists on
    decode: str | None
    received_s: float
    deadline_s: float
    namespace: bytes = b""
    policy: str | None = None
    priority: Priority = "normal"
    ttft_slo_ms: float | None = None
    tbt_slo_ms: float | None = None
    traceparent: str = ""
    tenant: str = ""
    user: str | None = None
    prompt_logprobs: int | None = None
    """Likely tokens beside the log probability of each of the prompt's; None: not wanted."""

    def cache_mode(self, *, needs_scores: bool) -> CacheMode:
        """A row that was not computed scores no token; what is computed may be shared."""
        return "write" if needs_scores and self.cache == "on" else self.cache

    def ttft_left_ms(self, now_s: float) -> float | None:
        """What the way here left of the target for token 0."""
        if self.ttft_slo_ms is None:
            return None
        return max(LEAST_TARGET_MS, self.ttft_slo_ms - (now_s - self.received_s) * 1_000)

    def remaining_ms(self, now_s: float) -> int:
        return max(0, int((self.deadline_s - now_s) * 1_000))
