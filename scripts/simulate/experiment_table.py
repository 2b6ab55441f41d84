"""Rows of an experiment: the paper's value, ours, their ratio, and why."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from scripts.simulate.lab import Row


def experiment_table(title: str, rows: Sequence[Row]) -> Group:
    """Reasons stand below, each once, under the number that its rows carry."""
    whys = list(dict.fromkeys(row.why for row in rows if row.why))
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for name in ("run", "quantity"):
        table.add_column(name, overflow="fold")  # numbers are never cut: these give way
    for name in ("paper", "ours", "ratio", "why"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        known = "" if row.paper is None else f"{row.paper:g}"
        number = f"[{whys.index(row.why) + 1}]" if row.why else ""
        table.add_row(row.label, row.quantity, known, f"{row.ours:.3f}", ratio, Text(number))
    notes = [Text(f"[{number}] {why}") for number, why in enumerate(whys, 1)]
    return Group(table, *notes)


def experiment_json(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "experiment": name,
        "rows": [
            {
                "run": row.label,
                "quantity": row.quantity,
                "paper": row.paper,
                "ours": row.ours,
                "ratio": row.ratio,
                "why": row.why,
            }
            for row in rows
        ],
    }
