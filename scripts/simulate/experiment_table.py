"""Rows of an experiment: the paper's value, ours, their ratio, and why."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from scripts.simulate.lab import Row


def experiment_table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(
        "run", "quantity", "paper", "ours", "ratio", "why", title=title, title_justify="left"
    )
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        known = "" if row.paper is None else f"{row.paper:g}"
        table.add_row(row.label, row.quantity, known, f"{row.ours:.3f}", ratio, row.why)
    return table


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
