"""The table of the demo. Decides nothing."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from scripts.demo.run import Row

SOURCES = {"none": "computed", "local": "this node", "remote": "other node", "mixed": "both"}
STAGES = (("queue_s", "queue"), ("load_s", "load"), ("compute_s", "compute"))


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(title="one text, five questions, two nodes", title_justify="left")
    for name in ("", "prefill", "decode", "prompt", "cached", "from"):
        table.add_column(name)
    for name in ("TTFT", "cold TTFT", "moved", "predicted", "real"):
        table.add_column(name, justify="right")
    table.add_column("= cold")
    for row in rows:
        answer, served = row.answer, row.answer.served
        table.add_row(
            row.step.what,
            served.prefill,
            served.decode,
            str(answer.prompt_tokens),
            str(answer.cached_tokens),
            SOURCES[served.cached_from],
            f"{served.ttft_s:.2f} s",
            f"{row.cold.served.ttft_s:.2f} s",
            _moved(served.bytes_moved, served.transfer_s),
            _bill(served.bill.get("predicted")),
            _bill(served.bill.get("real")),
            "[green]yes[/]" if row.equal_to_cold else "[bold red]no[/]",
        )
    return table


def _moved(moved_bytes: int, seconds: float) -> str:
    if not moved_bytes:
        return "nothing"
    return f"{moved_bytes / 1e6:.1f} MB\n{seconds * 1e3:.0f} ms"


def _bill(times: dict[str, Any] | None) -> str:
    """One line a stage that took time."""
    if not times:
        return "-"
    lines = [
        f"{name} {float(times[key]):.2f}"
        for key, name in STAGES
        if float(times.get(key, 0)) > 0.005
    ]
    lines.append(f"ttft {float(times.get('ttft_s', 0)):.2f}")
    return "\n".join(lines)
