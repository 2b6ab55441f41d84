"""TTFT, TBT, effective capacity and goodput: their one definition.

TTFT: from the gateway having the whole request to it sending token 0. TBT of a request: the mean of
its longest 10 % of token intervals (at least one), the first of which starts at token 0.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_SHARE = 0.1
LEAST_FIGURES, MOST_FIGURES = 3, 7


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets; None: no target."""

    ttft_s: float | None = None
    tbt_s: float | None = None

    def and_also(self, other: "Slo") -> "Slo":
        """Both hold: the stricter of each."""
        if other is NO_SLO:
            return self
        return Slo(_stricter(self.ttft_s, other.ttft_s), _stricter(self.tbt_s, other.tbt_s))


NO_SLO = Slo()


def _stricter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, slots=True)
class Served:
    """What one finished request took."""

    ttft_s: float
    tbt_s: float


def ttft_s(received_s: float, first_token_s: float) -> float:
    return first_token_s - received_s


def tbt_s(token_times_s: Sequence[float]) -> float:
    """TBT of a request from the times at which its tokens were sent; 0 for a single token."""
    intervals = sorted(
        (late - early for early, late in itertools.pairwise(token_times_s)),
        reverse=True,
    )
    if not intervals:
        return 0.0
    count = max(1, math.ceil(len(intervals) * LONGEST_SHARE))
    return sum(intervals[:count]) / count


def meets(served: Served, slo: Slo) -> bool:
    """Both targets are met."""
    is_ttft_met = slo.ttft_s is None or served.ttft_s <= slo.ttft_s
    is_tbt_met = slo.tbt_s is None or served.tbt_s <= slo.tbt_s
    return is_ttft_met and is_tbt_met


def effective_capacity(requests: Sequence[Served], num_asked: int, slo: Slo) -> float:
    """Share of all requests asked (refused and failed ones too) that met both targets."""
    return effective_capacity_of([(request, slo) for request in requests], num_asked)


def effective_capacity_of(requests: Sequence[tuple[Served, Slo]], num_asked: int) -> float:
    """The same, where each request has targets of its own."""
    if num_asked < len(requests):
        raise ValueError(f"num_asked: {num_asked} is less than the {len(requests)} served")
    if num_asked == 0:
        return 0.0
    return sum(meets(request, slo) for request, slo in requests) / num_asked


def attainment_of(requests: Sequence[tuple[Served, Slo]]) -> float:
    """Share of the requests that were served which met both of their targets."""
    return effective_capacity_of(requests, len(requests))


def goodput_per_s(requests: Sequence[Served], slo: Slo, span_s: float) -> float:
    """Requests a second that met both targets."""
    if span_s <= 0:
        raise ValueError(f"span_s: must be above 0, is {span_s}")
    return sum(meets(request, slo) for request in requests) / span_s


def shown(seconds: float, *, figures: int = LEAST_FIGURES) -> str:
    """With three figures whatever its size, for sentences: a target may be some milliseconds."""
    if seconds >= 0.9995:
        return f"{seconds:.{figures - 1}f} s"
    return f"{seconds * 1e3:.{figures}g} ms"


def shown_apart(one_s: float, other_s: float) -> tuple[str, str]:
    """Both, with more figures where they would read the same."""
    for figures in range(LEAST_FIGURES, MOST_FIGURES + 1):
        one, other = shown(one_s, figures=figures), shown(other_s, figures=figures)
        if one != other:
            return one, other
    return shown(one_s), shown(other_s)


def would_miss(target: str, predicted_s: float, allowed_s: float) -> str:
    predicted, allowed = shown_apart(predicted_s, allowed_s)
    return f"{target} would be {predicted}, allowed are {allowed}"
