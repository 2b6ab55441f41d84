"""`moonpool bench index`: the index against its goals."""

import os
from typing import Annotated

import typer

from scripts.bench.index import GROUPS, IndexBench, IndexOptions, run_groups
from scripts.bench.interleave import MIN_ROUNDS
from scripts.cli.bench_output import show_bars
from scripts.cli.output import CommandError, console
from shared.runtime.settings import CommonSettings


def index(
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"A group of bars: {', '.join(GROUPS)}. May be repeated."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the blocks, two rounds: does it run?")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help=f"Of every variant; {MIN_ROUNDS} unless quick.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure the index: matches and memory beside Dynamo's radix tree, NATS, Redis, loading.

    The peer is set up by `moonpool bench --setup-peers dynamo`; a bar whose peer or server is
    absent stays open and says so. Exit code 0 only if every bar that could be measured is ok. A
    full run takes about eight minutes on two idle cores and 4 GB; Ctrl-C shows the bars so far.

    Examples:

      moonpool bench index --quick

      moonpool bench index --only mirror --only nats

      moonpool bench index --json | jq '.bars[] | {name, value, goal, ok}'
    """
    names = only or list(GROUPS)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise CommandError(f"--only {unknown[0]}: no such group", hint=f"take {', '.join(GROUPS)}")
    bench = IndexBench(IndexOptions(CommonSettings().cache_dir, quick, rounds))
    with console.status("starting") as status:
        bench.on_run = status.update
        bars, unfinished = run_groups(bench, names, lambda name: console.print(f"measuring {name}"))
    more = {
        "runs": {name: series.as_json() for name, series in bench.series.items()},
        "unfinished": unfinished,
        **bench.details,
    }
    title = f"index, {bench.options.num_rounds} rounds; load {os.getloadavg()[0]:.1f}"
    code = show_bars(bars, title=title, as_json=as_json, more=more)
    if unfinished:
        console.print(f"[yellow]broken off; without {', '.join(unfinished)}[/]")
        raise typer.Exit(130)
    raise typer.Exit(code)
