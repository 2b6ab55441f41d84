"""What a measurement is held against, and how that is shown. Measures nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table

Relation = Literal[">=", "<=", "<"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One goal. `value` is None when it could not be measured; `note` then says why."""

    name: str
    value: float | None
    unit: str
    goal: str
    ok: bool
    note: str = ""

    @property
    def is_measured(self) -> bool:
        return self.value is not None

    def as_json(self) -> dict[str, Any]:
        shown = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "ok": self.ok,
        }
        return shown | ({"note": self.note} if self.note else {})


def judged(
    name: str, value: float, relation: Relation, goal: float, unit: str, *, note: str = ""
) -> Bar:
    """The bar of a measured value."""
    ok = {">=": value >= goal, "<=": value <= goal, "<": value < goal}[relation]
    return Bar(name, value, unit, f"{relation} {goal:g}", ok, note)


def not_measured(name: str, relation: Relation, goal: float, unit: str, *, why: str) -> Bar:
    """A bar that stays open: it says why and is not ok."""
    return Bar(name, None, unit, f"{relation} {goal:g}", False, f"not measured: {why}")


def all_measured_ok(bars: Iterable[Bar]) -> bool:
    """Whether no measured bar missed its goal, and at least one was measured."""
    measured = [bar for bar in bars if bar.is_measured]
    return bool(measured) and all(bar.ok for bar in measured)


def table_of(bars: Sequence[Bar], *, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("bar")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("goal", justify="right")
    table.add_column("ok")
    table.add_column("note")
    for bar in bars:
        if bar.value is None:
            value, verdict = "-", "[yellow]open[/]"
        else:
            value, verdict = f"{bar.value:.4g}", "[green]yes[/]" if bar.ok else "[bold red]no[/]"
        table.add_row(bar.name, value, bar.unit, bar.goal, verdict, bar.note.replace("[", "\\["))
    return table
