"""Simulated runs side by side, for people and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from shared.simulator.outcome import Outcome, mean, percentile

COLUMNS = (
    ("mean TTFT s", "mean_ttft_s"),
    ("p50", "p50_ttft_s"),
    ("p90", "p90_ttft_s"),
    ("p99", "p99_ttft_s"),
    ("prefill s", "mean_prefill_s"),
    ("mean TBT s", "mean_tbt_s"),
    ("hit", "hit"),
    ("busiest/mean", "imbalance"),
)


def outcomes_table(title: str, outcomes: Sequence[Outcome], bound_s: Sequence[float]) -> Table:
    names = (name for name, _ in COLUMNS)
    table = Table("policy", *names, "fetches", "refused", title=title, title_justify="left")
    for outcome in outcomes:
        summary = outcome.summary()
        cells = [f"{summary[key]:.3f}" for _, key in COLUMNS]
        table.add_row(outcome.policy, *cells, str(outcome.fetches), str(outcome.num_refused))
    bound = [f"{mean(bound_s):.3f}", *(f"{percentile(bound_s, p):.3f}" for p in (50, 90, 99))]
    table.add_row("FIFO bound", *bound, *[""] * (len(COLUMNS) - 2))
    return table


def outcomes_json(
    trace: str, outcomes: Sequence[Outcome], bound_s: Sequence[float]
) -> dict[str, Any]:
    return {
        "trace": trace,
        "fifo_bound": {"mean_ttft_s": mean(bound_s), "p99_ttft_s": percentile(bound_s, 99)},
        "runs": [outcome.summary() for outcome in outcomes],
    }
