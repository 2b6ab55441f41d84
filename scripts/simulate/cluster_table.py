"""Simulated runs side by side, for people and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from scripts.charts.chart import Chart, Series, bars
from shared.simulator.outcome import Outcome, mean, percentile

COLUMNS = (
    ("TTFT\ns", "mean_ttft_s"),
    ("p90\ns", "p90_ttft_s"),
    ("p99\ns", "p99_ttft_s"),
    ("TBT\ns", "mean_tbt_s"),
    ("hit\nshare", "hit"),
    ("load\nmax/mean", "imbalance"),
)
NOTE = (
    "TTFT: mean, then percentiles; hit: of prompt tokens; load: the busiest prefill instance over "
    "the mean; fetched: prefixes that came from another node; refused: requests"
)


def outcomes_table(title: str, outcomes: Sequence[Outcome], bound_s: Sequence[float]) -> Table:
    """No cell is cut off."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False,
        caption=NOTE, caption_justify="left",
    )  # fmt: skip
    for name in ("policy", *(name for name, _ in COLUMNS), "fetched", "refused"):
        table.add_column(name, no_wrap=True)
    for outcome in outcomes:
        summary = outcome.summary()
        cells = [_number(summary[key]) for _, key in COLUMNS]
        table.add_row(outcome.policy, *cells, str(outcome.fetches), str(outcome.num_refused))
    bound = [_number(mean(bound_s)), *(_number(percentile(bound_s, p)) for p in (90, 99))]
    table.add_row("FIFO bound", *bound, *[""] * (len(COLUMNS) - 1))
    return table


def outcomes_json(
    trace: str, outcomes: Sequence[Outcome], bound_s: Sequence[float]
) -> dict[str, Any]:
    return {
        "trace": trace,
        "fifo_bound": {"mean_ttft_s": mean(bound_s), "p99_ttft_s": percentile(bound_s, 99)},
        "runs": [outcome.summary() for outcome in outcomes],
    }


def outcomes_charts(outcomes: Sequence[Outcome]) -> list[Chart]:
    means = {outcome.policy: outcome.mean_ttft_s for outcome in outcomes}
    tails = {outcome.policy: outcome.ttft_percentile_s(99) for outcome in outcomes}
    by_percent = tuple(
        Series(
            outcome.policy,
            tuple((float(p), outcome.ttft_percentile_s(p)) for p in range(5, 100, 5)),
        )
        for outcome in outcomes
    )
    return [
        bars("TTFT by policy", "seconds", {"mean": means, "p99": tails}),
        Chart("TTFT percentiles", "percent of requests", "seconds", by_percent),
    ]


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
