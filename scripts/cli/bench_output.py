"""How benches show their bars: a table for people, one JSON object for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from scripts.bench.bars import Bar, all_measured_ok, table_of
from scripts.cli.output import console, print_json

TABLE_WIDTH = 160


def show_bars(
    bars: Sequence[Bar], *, title: str, as_json: bool, more: Mapping[str, Any] | None = None
) -> int:
    """The exit code: 0 only when all that could be measured is ok. `more` is for the JSON."""
    ok = all_measured_ok(bars)
    missing = [bar.name for bar in bars if not bar.is_measured]
    # With --json the table is for whoever watches.
    out = Console(highlight=False, stderr=as_json)
    if not out.is_terminal:
        out = Console(highlight=False, stderr=as_json, width=TABLE_WIDTH)
    out.print(table_of(bars, title=title))
    if missing:
        console.print(f"[yellow]{len(missing)} of {len(bars)} bars could not be measured[/]")
    if as_json:
        shown = [bar.as_json() for bar in bars]
        print_json({"ok": ok, "bars": shown, "not_measured": missing, **(more or {})})
    return 0 if ok else 1
