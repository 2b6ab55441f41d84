"""Shows what faults cost: one line for each fault and target, over all stages."""

from collections.abc import Sequence
from typing import Any

COLUMNS = ("fault", "target", "stages", "answers", "errors", "wrong", "leaks", "hangs")
TIMES = ("recovery s", "gap s")


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Errors, wrong answers, leaks and hangs are sums; times are `median / longest`."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["fault"], row["target"]), []).append(row)
    lines = [_line(*COLUMNS, *TIMES), "|---" * (len(COLUMNS) + len(TIMES)) + "|"]
    for (fault, target), group in groups.items():
        sums = [sum(row[name] for row in group) for name in ("answers", "errors", "wrong")]
        leaks, hangs = sum(len(row["leaks"]) for row in group), sum(row["hangs"] for row in group)
        times = [_times([row[name] for row in group]) for name in ("recovery_s", "gap_s")]
        lines.append(_line(fault, target, len(group), *sums, leaks, hangs, *times))
    return "\n".join(lines)


def _times(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1f} / {ordered[-1]:.1f}"


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
