"""Requests over time in steps, and all of the last minutes together. Pure; time is given."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from shared.overview.requests import NO_SLO, Seen, Slos, tokens_by_source
from shared.scheduling import slo

STEP_S = 5.0
SPAN_S = 600.0
SUMMARY_S = 300.0
ENDINGS = ("finished", "refused", "failed", "cancelled")
SOURCES = ("none", "local", "remote", "disk")


def series_of(requests: Iterable[Seen], slos: Slos, now_s: float) -> dict[str, Any]:
    """Steps in which a request ended, within SPAN_S; the others had none."""
    first_s = now_s - SPAN_S
    steps: dict[int, list[Seen]] = {}
    for one in requests:
        if one.ended_s >= first_s:
            steps.setdefault(math.floor(one.ended_s / STEP_S), []).append(one)
    return {
        "step_s": STEP_S,
        "span_s": SPAN_S,
        "steps": [
            {"start_s": number * STEP_S, **figures_of(ended, slos)}
            for number, ended in sorted(steps.items())
        ],
    }


def summary_of(requests: Iterable[Seen], slos: Slos, now_s: float) -> dict[str, Any]:
    """The last SUMMARY_S together, and why requests were not answered."""
    recent = [one for one in requests if one.ended_s >= now_s - SUMMARY_S]
    return {"span_s": SUMMARY_S, **figures_of(recent, slos), "reasons": _reasons(recent)}


def figures_of(requests: Sequence[Seen], slos: Slos) -> dict[str, Any]:
    """`attainment` and `effective_capacity` are None where no request has a target."""
    served = [(one.served, one.slo(slos)) for one in requests if one.served is not None]
    pairs = [(time, target) for time, target in served if time is not None]
    num_asked = sum(one.is_asked for one in requests)
    has_targets = any(one.slo(slos) != NO_SLO for one in requests if one.is_asked)
    bills = [one.request.bill for one in requests if one.request.bill is not None]
    tokens = dict.fromkeys(SOURCES, 0)
    for bill in bills:
        for source, count in tokens_by_source(bill.reuse).items():
            tokens[source] += count
    ttfts = [time.ttft_s for time, _ in pairs]
    tbts = [bill.real.tbt_s for bill in bills if bill.output_tokens > 1]
    return {
        "endings": {name: sum(one.request.ending == name for one in requests) for name in ENDINGS},
        "asked": num_asked,
        "tokens": tokens,
        "output_tokens": sum(bill.output_tokens for bill in bills),
        "ttft_s": {"p50": percentile(ttfts, 50), "p90": percentile(ttfts, 90)},
        "tbt_s": {"p50": percentile(tbts, 50), "p90": percentile(tbts, 90)},
        "attainment": slo.attainment_of(pairs) if has_targets and pairs else None,
        "effective_capacity": (
            slo.effective_capacity_of(pairs, num_asked) if has_targets and num_asked else None
        ),
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that so many percent are not above; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 5)


def _reasons(requests: Sequence[Seen]) -> list[dict[str, Any]]:
    """Of refused and failed requests, the most frequent first, with the last message of each."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in requests:
        error = one.request.error
        if error is None or one.request.ending not in ("refused", "failed"):
            continue
        reason = found.setdefault((one.request.ending, str(error.code)), {"count": 0})
        reason |= {
            "ending": one.request.ending,
            "code": str(error.code),
            "count": reason["count"] + 1,
            "message": error.message,
            "last_s": round(one.ended_s, 3),
        }
    return sorted(found.values(), key=lambda reason: -reason["count"])
