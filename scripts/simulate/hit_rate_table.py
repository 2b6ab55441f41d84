"""The hit-rate laboratory at the terminal: policies by pool size, beside LRU."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from scripts.charts.chart import Chart, Series
from shared.simulator.hit_rate import HitRate, measure
from shared.simulator.trace import Mode, TraceRequest

REFERENCE = "lru"


def measure_all(
    requests: Sequence[TraceRequest],
    policies: Sequence[str],
    sizes_tokens: Sequence[int],
    mode: Mode,
    on_done: Callable[[], None],
) -> list[HitRate]:
    rates: list[HitRate] = []
    for policy in policies:
        for size in sizes_tokens:
            rates.append(measure(requests, policy, size, mode))
            on_done()
    return rates


def hit_rate_json(trace: str, mode: Mode, rates: Sequence[HitRate]) -> dict[str, Any]:
    reference = _reference(rates)
    return {
        "trace": trace,
        "mode": mode,
        "rows": [
            {
                "policy": rate.policy,
                "size_tokens": rate.size_tokens,
                "hit": rate.hit,
                "hit_second_half": rate.second_half,
                "to_lru": _ratio(rate.hit, reference, rate.size_tokens),
            }
            for rate in rates
        ],
    }


def hit_rate_table(trace: str, mode: Mode, rates: Sequence[HitRate]) -> Table:
    sizes = list(dict.fromkeys(rate.size_tokens for rate in rates))
    reference = _reference(rates)
    table = Table(
        "policy",
        *(size_name(size) for size in sizes),
        title=f"{trace}: share of prompt tokens served by one pool of so many tokens ({mode}; in "
        "brackets: times what LRU serves)",
        title_justify="left",
    )
    for policy in dict.fromkeys(rate.policy for rate in rates):
        by_size = {rate.size_tokens: rate.hit for rate in rates if rate.policy == policy}
        cells = []
        for size in sizes:
            ratio = _ratio(by_size[size], reference, size)
            beside = "" if ratio is None or policy == REFERENCE else f" ({ratio:.2f})"
            cells.append(f"{by_size[size]:.4f}{beside}")
        table.add_row(policy, *cells)
    return table


def hit_rate_chart(trace: str, rates: Sequence[HitRate]) -> Chart:
    series = tuple(
        Series(
            policy,
            tuple((rate.size_tokens / 1e6, rate.hit) for rate in rates if rate.policy == policy),
        )
        for policy in dict.fromkeys(rate.policy for rate in rates)
    )
    return Chart(f"{trace}: hit by pool size", "million tokens", "hit", series, is_x_log=True)


def size_name(size_tokens: int) -> str:
    return f"{size_tokens / 1e6:g}M"


def _reference(rates: Sequence[HitRate]) -> dict[int, float]:
    return {rate.size_tokens: rate.hit for rate in rates if rate.policy == REFERENCE}


def _ratio(hit: float, reference: dict[int, float], size: int) -> float | None:
    base = reference.get(size)
    return hit / base if base else None
