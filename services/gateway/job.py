"""One request as the cluster sees it, fixed before it starts."""

from dataclasses import dataclass

from shared.messages.common import CacheMode, Sampling


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
    policy: str | None
    received_s: float
    deadline_s: float

    def remaining_ms(self, now_s: float) -> int:
        return max(0, int((self.deadline_s - now_s) * 1_000))
