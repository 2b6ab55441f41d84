"""The tables of the demo, narrow enough for a terminal of 80 columns. Decides nothing."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from scripts.demo.run import Row

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


def bills_of(rows: Sequence[Row]) -> Table:
    """What was predicted at placement and what it came to."""
    table = _table("The bill in seconds, predicted → real")
    table.add_column("")
    for _, name in STAGES:
        table.add_column(name, justify="right")
    for number, row in enumerate(rows, 1):
        bill = row.answer.served.bill
        table.add_row(str(number), *(_stage(bill, key) for key, _ in STAGES))
    return table


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def _stage(bill: dict[str, Any], key: str) -> str:
    return " → ".join(_seconds(bill.get(side), key) for side in ("predicted", "real"))


def _seconds(times: dict[str, Any] | None, key: str) -> str:
    return "-" if not times else f"{float(times.get(key) or 0):.2f}"
