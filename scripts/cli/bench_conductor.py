"""`moonpool bench conductor`: CPU time of placements among a thousand instances."""

from typing import Annotated

import typer
from rich.console import Console

from scripts.bench.bars import all_measured_ok, judged, table_of
from scripts.bench.conductor import measure
from scripts.cli.output import print_json
from shared.scheduling.policies.registry import DEFAULT_POLICY


def conductor(
    policy: Annotated[str, typer.Option(help="Whose decisions.")] = DEFAULT_POLICY,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Decide placements of 500-block prompts among 1,000 + 1,000 and 100 + 100 instances.

    Examples:

      moonpool bench conductor
    """
    large = measure(1_000, policy, 1_000, num_holders=64)
    small = measure(100, policy, 2_000, num_holders=64)
    bars = [
        judged("CPU of a decision, 1,000 + 1,000, p50", large.p50_ms, "<", 1.0, "ms"),
        judged("CPU of a decision, 1,000 + 1,000, p99", large.p99_ms, "<", 5.0, "ms"),
        judged("decisions a second, 100 + 100", small.decisions_per_s, ">=", 1_000, "/s"),
    ]
    ok = all_measured_ok(bars)
    if as_json:
        print_json({"ok": ok, "policy": policy, "bars": [bar.as_json() for bar in bars]})
    else:
        Console(highlight=False).print(table_of(bars, title=f"conductor, {policy}"))
    raise typer.Exit(0 if ok else 1)
