"""A replay's figures at the terminal and as charts."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from scripts.charts.chart import Chart, Series, bars
from scripts.replay.player import Run
from shared.scheduling.slo import tbt_s
from shared.simulator.outcome import percentile

SECONDS = (
    "mean_ttft_s", "p50_ttft_s", "p90_ttft_s", "p99_ttft_s", "p50_tbt_s", "p90_tbt_s", "p99_tbt_s",
    "p50_itl_s", "p90_itl_s", "p99_itl_s",
)  # fmt: skip


def replay_table(title: str, found: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for one in found:
        table.add_column(one["run"], justify="right", no_wrap=True)
    rows: list[tuple[str, list[str]]] = [
        (name, [str(one[name]) for one in found]) for name in ("requests", "served", "refused")
    ]
    rows.append(("failed", [str(sum(one["failed"].values())) for one in found]))
    rows += [
        (
            f"{name.replace('_s', '').replace('_', ' ')}, ms",
            [f"{1e3 * one[name]:.1f}" for one in found],
        )
        for name in SECONDS
    ]
    rows.append(("within targets", [f"{one['effective']:.3f}" for one in found]))
    rows.append(("hit", [f"{one['hit']:.3f}" for one in found]))
    sources = sorted({source for one in found for source in one["cached_by_source"]})
    rows += [
        (f"cached, {source}", [str(one["cached_by_source"].get(source, 0)) for one in found])
        for source in sources
    ]
    rows.append(("fetched MB", [f"{one['fetched_bytes'] / 1e6:.1f}" for one in found]))
    components = sorted({name for one in found for name in one["prediction_error"]})
    for name in components:
        cells = []
        for one in found:
            error = one["prediction_error"].get(name)
            cells.append("" if error is None else f"{error['p50']:.2f} / {error['p90']:.2f}")
        rows.append((f"prediction off, {name} p50/p90", cells))
    rows.append(
        (
            "the machine's speed moved",
            [
                f"{one['machine']['moved']:.0%}"
                + ("" if one["machine"]["is_steady"] else ": no evidence")
                for one in found
            ],
        )
    )
    rows.append(("client late p99, ms", [f"{1e3 * one['client_lag_p99_s']:.1f}" for one in found]))
    if any("simulated" in one for one in found):
        for name in ("ttft_to_live", "stages_to_live", "cached_to_live"):
            shown = [f"{one['simulated'][name]:.2f}" if "simulated" in one else "" for one in found]
            rows.append((f"simulated, {name.replace('_', ' ')}", shown))
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def replay_charts(runs: dict[str, Run]) -> list[Chart]:
    ttfts = {
        name: [one.token_times_s[0] - one.sent_s for one in run.played if one.is_served]
        for name, run in runs.items()
    }
    percents = range(5, 100, 5)
    series = tuple(
        Series(name, tuple((float(p), percentile(values, p)) for p in percents))
        for name, values in ttfts.items()
    )
    tbts = {
        name: {
            f"p{p}": percentile(
                [tbt_s(one.token_times_s) for one in run.played if one.is_served], p
            )
            for p in (50, 90, 99)
        }
        for name, run in runs.items()
    }
    return [
        Chart("TTFT percentiles", "percent of requests", "seconds", series),
        bars("TBT", "seconds", tbts),
    ]
