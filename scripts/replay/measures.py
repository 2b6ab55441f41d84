"""What a replay measured: figures of a run, by the project's one definition of each."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scripts.replay.player import Played, Run
from shared.scheduling.prediction_error import PredictionErrors
from shared.scheduling.slo import Served, Slo, effective_capacity, tbt_s, ttft_s
from shared.scheduling.vocabulary import PredictedTimes
from shared.simulator.outcome import mean, percentile

REFUSED = 429
LATE_S = 0.05
"""A client that is later than this at the 99th percentile measures itself."""


def measures_of(name: str, run: Run, slo: Slo) -> dict[str, Any]:
    served = [one for one in run.played if one.is_served]
    times = [Served(_ttft_s(one), tbt_s(one.token_times_s)) for one in served]
    gaps = [late - early for one in served for early, late in itertools.pairwise(one.token_times_s)]
    lag_s = percentile([one.lag_s for one in run.played], 99)
    loop_s = percentile(run.loop_lags_s, 99)
    return {
        "run": name,
        "requests": len(run.played),
        "served": len(served),
        "refused": sum(one.status == REFUSED for one in run.played),
        "failed": dict(Counter(_failure(one) for one in run.played if _failure(one))),
        "span_s": run.span_s,
        "mean_ttft_s": mean([one.ttft_s for one in times]),
        "mean_stages_s": mean([_stages_s(one) for one in served if one.bill.get("bill")]),
        **_percentiles("ttft_s", [one.ttft_s for one in times]),
        **_percentiles("tbt_s", [one.tbt_s for one in times]),
        **_percentiles("itl_s", gaps),
        "effective": effective_capacity(times, len(run.played), slo),
        **_sources(served),
        "prediction_error": _prediction_errors(served),
        "machine": run.machine.summary(),
        "client_lag_p99_s": lag_s,
        "client_loop_lag_p99_s": loop_s,
        "is_client_the_bottleneck": max(lag_s, loop_s) > LATE_S,
    }


def _ttft_s(one: Played) -> float:
    return ttft_s(one.sent_s, one.token_times_s[0])


def _stages_s(one: Played) -> float:
    """Of its TTFT: waiting or loading, and computing."""
    real = one.bill["bill"]["real"]
    return float(max(real["queue_s"], real["load_s"]) + real["compute_s"])


def _failure(one: Played) -> str:
    if one.is_served or one.status == REFUSED:
        return ""
    return one.error or f"HTTP {one.status} without a token"


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"p{p}_{name}": percentile(values, p) for p in (50, 90, 99)}


def _sources(served: Sequence[Played]) -> dict[str, Any]:
    """Tokens of the served prompts by where their KV came from, and the bytes that moved."""
    prompt = sum(one.planned.num_tokens for one in served)
    by_source: Counter[str] = Counter()
    for one in served:
        by_source[str(one.bill.get("cached_from", "unknown"))] += one.bill.get("cached_tokens", 0)
    cached = sum(by_source.values())
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit": cached / max(prompt, 1),
        "cached_by_source": {name: count for name, count in by_source.items() if count},
        "fetched_bytes": sum(one.bill.get("fetched_bytes", 0) for one in served),
        "streamed_bytes": sum(one.bill.get("streamed_bytes", 0) for one in served),
    }


def _prediction_errors(served: Sequence[Played]) -> dict[str, Any]:
    errors = PredictionErrors()
    for one in served:
        bill = one.bill.get("bill")
        if bill:
            real = bill["real"]
            errors.add(_times(bill["predicted"]), _times(real), real["ttft_s"])
    return {name: asdict(summary) for name, summary in errors.summary().items()}


def _times(given: dict[str, float]) -> PredictedTimes:
    names = ("queue_s", "load_s", "compute_s", "overhead_s", "handoff_s", "tbt_s")
    return PredictedTimes(**{name: given.get(name, 0.0) for name in names})
