"""What became of each simulated request, and the figures made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.scheduling.slo import Served, Slo, effective_capacity

Fate = Literal["served", "refused", "refused_after_prefill"]
PERCENTILES = (25, 50, 75, 90, 99)


@dataclass(slots=True)
class RequestOutcome:
    arrival_s: float
    num_tokens: int
    fate: Fate = "served"
    prefill: str = ""
    local_tokens: int = 0
    fetched_tokens: int = 0
    queue_s: float = 0.0
    load_s: float = 0.0
    compute_s: float = 0.0
    ttft_s: float = 0.0
    handoff_s: float = 0.0
    """From token 0 until all of the KV is at the decode node."""
    tbt_s: float = 0.0
    decode_s: float = 0.0
    """From token 0 to the last."""
    output_tokens: int = 0
    predicted_ttft_s: float = 0.0


@dataclass(slots=True)
class Outcome:
    """One run: its requests in order of arrival, and what the instances did."""

    policy: str
    requests: list[RequestOutcome]
    span_s: float = 0.0
    busy_by_prefill_s: dict[str, float] = field(default_factory=dict)
    sent_bytes: int = 0
    fetches: int = 0
    wasted_prefill_s: float = 0.0

    @property
    def served(self) -> list[RequestOutcome]:
        return [one for one in self.requests if one.fate == "served"]

    @property
    def num_refused(self) -> int:
        return len(self.requests) - len(self.served)

    @property
    def mean_ttft_s(self) -> float:
        return mean([one.ttft_s for one in self.served])

    def ttft_percentile_s(self, percent: float) -> float:
        return percentile([one.ttft_s for one in self.served], percent)

    def refused_share(self, from_s: float, until_s: float) -> float:
        """Of those that arrive in this time."""
        asked = [one for one in self.requests if from_s <= one.arrival_s <= until_s]
        return mean([float(one.fate != "served") for one in asked])

    def decoded_per_s(self, from_s: float = 0.0) -> float:
        """Tokens after the first ones, from then until the last arrival."""
        until_s = self.requests[-1].arrival_s
        tokens = 0.0
        for one in self.served:
            began_s = one.arrival_s + one.ttft_s
            inside_s = min(began_s + one.decode_s, until_s) - max(began_s, from_s)
            if inside_s > 0:
                tokens += (one.output_tokens - 1) * inside_s / one.decode_s
        return tokens / max(until_s - from_s, 1e-9)

    @property
    def prefill_busy(self) -> float:
        """Share of the time until the last prefill was done, mean over the instances."""
        until_s = max((one.arrival_s + one.ttft_s for one in self.requests), default=0.0)
        busy = self.busy_by_prefill_s.values()
        return sum(busy) / len(busy) / until_s if busy and until_s else 0.0

    @property
    def hit(self) -> float:
        """Share of the prompts' tokens that was not computed."""
        served = self.served
        cached = sum(one.local_tokens + one.fetched_tokens for one in served)
        return cached / max(1, sum(one.num_tokens for one in served))

    @property
    def mean_compute_s(self) -> float:
        return mean([one.compute_s for one in self.served])

    @property
    def imbalance(self) -> float:
        """Busiest prefill instance over their mean."""
        busy = list(self.busy_by_prefill_s.values())
        return max(busy) / (sum(busy) / len(busy)) if sum(busy) else 1.0

    def effective(self, slo: Slo) -> float:
        served = [Served(one.ttft_s, one.tbt_s) for one in self.served]
        return effective_capacity(served, len(self.requests), slo)

    def summary(self) -> dict[str, Any]:
        served = self.served
        return {
            "policy": self.policy,
            "requests": len(self.requests),
            "refused": self.num_refused,
            "mean_ttft_s": self.mean_ttft_s,
            **{f"p{p}_ttft_s": self.ttft_percentile_s(p) for p in PERCENTILES},
            "mean_queue_s": mean([one.queue_s for one in served]),
            "mean_prefill_s": self.mean_compute_s,
            "mean_handoff_s": mean([one.handoff_s for one in served]),
            "mean_tbt_s": mean([one.tbt_s for one in served]),
            "p99_tbt_s": percentile([one.tbt_s for one in served], 99),
            "hit": self.hit,
            "fetches": self.fetches,
            "sent_bytes": self.sent_bytes,
            "imbalance": self.imbalance,
            "wasted_prefill_s": self.wasted_prefill_s,
            "span_s": self.span_s,
        }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
