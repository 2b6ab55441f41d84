"""The tables of the demo, narrow enough for a terminal of 80 columns. Decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from scripts.demo.run import Row

Bill = Mapping[str, Any]
"""`predicted` and `real`, each with seconds by stage."""
STAGES = (("queue_s", "queue"), ("load_s", "load"), ("compute_s", "compute"), ("ttft_s", "TTFT"))


def table_of(rows: Sequence[Row]) -> Table:
    """Who computed, what was reused and moved, and how long token 0 took."""
    table = _table("One text, five questions, two nodes")
    for name in ("", "prefill → decode", "cached", "from"):
        table.add_column(name)
    for name in ("MB", "TTFT", "cold"):
        table.add_column(name, justify="right")
    table.add_column("same")
    for number, row in enumerate(rows, 1):
        answer, served = row.answer, row.answer.served
        table.add_row(
            str(number),
            f"{served.prefill} → {served.decode}",
            f"{answer.cached_tokens}/{answer.prompt_tokens}",
            served.cached_from,
            f"{served.bytes_moved / 1e6:.1f}",
            f"{served.ttft_s:.2f} s",
            f"{row.cold.served.ttft_s:.2f} s",
            "[green]yes[/]" if row.equal_to_cold else "[bold red]no[/]",
        )
    return table


def bills_of(
    bills: Mapping[str, Bill],
    *,
    title: str = "The bill in seconds, predicted → real",
    stages: Sequence[tuple[str, str]] = STAGES,
    places: int = 2,
) -> Table:
    """What was predicted at placement and what it came to; a line for each name."""
    table = _table(title)
    table.add_column("")
    for _, heading in stages:
        table.add_column(heading, justify="right")
    for name, bill in bills.items():
        table.add_row(name, *(_stage(bill, key, places) for key, _ in stages))
    return table


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def _stage(bill: Bill, key: str, places: int) -> str:
    return " → ".join(_seconds(bill.get(side), key, places) for side in ("predicted", "real"))


def _seconds(times: Mapping[str, Any] | None, key: str, places: int) -> str:
    value = None if not times else times.get(key)
    return "-" if value is None else f"{value:.{places}f}"
