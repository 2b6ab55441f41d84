"""`moonpool bench engine`: the engine against its goals."""

import os
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.bench.engine import EngineOptions
from scripts.bench.engine_groups import GROUPS, EngineReport, run_groups
from scripts.bench.interleave import MIN_ROUNDS
from scripts.cli.bench_output import show_bars
from scripts.cli.output import CommandError, console
from scripts.cli.up import check_model
from scripts.launcher.options import DEFAULT_MODEL
from shared.runtime.settings import CommonSettings


def engine(
    model: Annotated[
        str, typer.Option(help="Name, GGUF file, Hugging Face folder or dummy:<preset>.")
    ] = DEFAULT_MODEL,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"A group of bars: {', '.join(GROUPS)}. May be repeated."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short prompts, two rounds: does it run at all?")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help=f"Of every variant; {MIN_ROUNDS} unless quick.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of every engine; all cores when not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure the engine against the machine's limits, other engines and its own goals.

    All variants of a group run in turn, so that what else the machine does hits all alike; a bar
    compares within rounds and takes the median. Engines to compare with are set up by `moonpool
    bench --setup-peers hf llamacpp vllm`; a bar whose engine is absent stays open and says so.
    Exit code 0 only if every bar that could be measured is ok. A full run takes half an hour on two
    idle cores; Ctrl-C shows the bars so far.

    Examples:

      moonpool bench engine --quick

      moonpool bench engine --only decode --only hooks

      moonpool bench engine --json | jq '.bars[] | select(.ok | not)'
    """
    names = only or list(GROUPS)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise CommandError(f"--only {unknown[0]}: no such group", hint=f"take {', '.join(GROUPS)}")
    check_model(model)
    options = EngineOptions(
        model=model,
        threads=threads or len(os.sched_getaffinity(0)),
        cache_dir=CommonSettings().cache_dir,
        is_quick=quick,
        rounds=rounds,
    )
    report = _run(options, names)
    load = f"load {report.load_before:.1f} before, {report.load_after:.1f} after"
    title = f"{model}, {options.threads} threads, {report.bench.rounds} rounds; {load}"
    code = show_bars(report.bars, title=title, as_json=as_json, more=report.details())
    for name, version in report.versions.items():
        console.print(f"{name}: {version}", style="dim")
    if report.unfinished:
        console.print(f"[yellow]broken off; without {', '.join(report.unfinished)}[/]")
        raise typer.Exit(130)
    raise typer.Exit(code)


def _run(options: EngineOptions, names: list[str]) -> EngineReport:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(names))
        started: list[str] = []

        def on_group(name: str) -> None:
            progress.update(task, completed=len(started), description=name)
            started.append(name)
            if not console.is_terminal:
                console.print(f"measuring {name} ({len(started)} of {len(names)})")

        def on_run(what: str) -> None:
            progress.update(task, description=what)

        return run_groups(options, names, on_group=on_group, on_run=on_run)
