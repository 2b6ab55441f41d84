"""`moonpool bench idle`: what a cluster takes while nobody asks anything."""

import asyncio
from typing import Annotated

import typer

from scripts.bench.bars import judged
from scripts.bench.idle import measure_idle
from scripts.cli.bench_output import show_bars
from scripts.cli.output import console
from scripts.launcher.options import DEFAULT_MODEL, ClusterOptions

GOAL = 0.05


def idle(
    seconds: Annotated[float, typer.Option(min=1.0, help="To measure.")] = 60.0,
    model: Annotated[str, typer.Option(help="As of `moonpool up`.")] = DEFAULT_MODEL,
    nodes: Annotated[int, typer.Option(min=1)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Start a cluster, ask it nothing, and add up the CPU time of all its processes.

    Exit code 0 only if the bar is ok: below 5 % of one core in total.

    Examples:

      moonpool bench idle

      moonpool bench idle --model dummy:tiny --nodes 4 --seconds 20 --json
    """
    options = ClusterOptions(model=model, nodes=nodes, log_level="WARNING")
    with console.status("an idle cluster"):
        figures = asyncio.run(measure_idle(options, seconds))
    shares = sorted(figures.by_process.items(), key=lambda one: -one[1])
    note = ", ".join(f"{name} {share:.2%}" for name, share in shares)
    bars = [judged("idle cluster", figures.total, "<", GOAL, "of a core", note=note)]
    more = {
        "processes": figures.by_process,
        "launcher": figures.launcher,
        "threads": figures.threads,
    }
    raise typer.Exit(show_bars(bars, title="Idle", as_json=as_json, more=more))
