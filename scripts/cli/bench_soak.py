"""`moonpool bench soak`: mixed load and random faults for minutes; is everything flat and right?"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scripts.charts.chart import Chart, Series
from scripts.charts.files import check_plot, write_charts
from scripts.cli.output import CommandError, console, print_json
from scripts.launcher.cluster import LocalCluster
from scripts.soak.run import Report, Sample, Soak, SoakOptions, cluster_options

NUM_ROWS = 10
"""Of the table, about."""
HEAD = (
    "minute | answers | left | errors | wrong | faults | memory MB | descriptors | threads | "
    "slots taken | blocks"
)


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the users and the faults.")] = 1,
    every_s: Annotated[float, typer.Option(min=0.5, help="Mean time between two faults.")] = 12.0,
    plot: Annotated[Path | None, typer.Option(help="Charts, to .html or .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Load a cluster of its own with 20 users while its processes are killed, stopped and drained.

    Sessions, long prompts, three tenants, changing cache salts, connections that are kept and new
    ones, and clients that leave; every answer is compared to that of a cold run. Exit code 0 only
    if no answer was wrong, none failed, and memory, descriptors, threads and slots of every process
    are back at their start.

    Examples:

      moonpool bench soak --minutes 10

      moonpool bench soak --minutes 60 --seed 7 --plot soak.html --json
    """
    check_plot(plot)
    interval_s = max(2.0, minutes * 60 / NUM_ROWS)
    report = asyncio.run(_run(SoakOptions(minutes, seed, every_s, interval_s)))
    _print_verdict(report, Console(highlight=False, stderr=as_json, soft_wrap=True))
    if plot is not None:
        write_charts(plot, f"Soak of {minutes:g} minutes, seed {seed}", _charts(report))
    if as_json:
        print_json(report.as_json())
    raise typer.Exit(0 if report.ok else 1)


async def _run(options: SoakOptions) -> Report:
    console.print(f"starting a cluster; then {options.minutes:g} minutes")
    async with LocalCluster(cluster_options()) as cluster:
        await cluster.wait_ready()
        work = Soak(cluster, options)
        console.print(HEAD, soft_wrap=True)
        report = await work.run(lambda sample: console.print(_row(sample), soft_wrap=True))
        cluster.is_keeping_logs = not report.ok
        if not report.samples and report.left:
            raise CommandError(
                f"the cluster does not come to rest before any fault: {report.left[0]}",
                hint=f"the logs are in {cluster.folder.logs}",
            )
        if not report.ok:
            console.print(f"the logs are in {cluster.folder.logs}")
    return report


def _row(sample: Sample) -> str:
    cells = (
        f"{sample.at_s / 60:.1f}",
        sample.answers,
        sample.left,
        sample.errors,
        sample.wrong,
        sample.faults,
        f"{sample.memory_mb:.0f}",
        sample.descriptors,
        sample.threads,
        sample.slots_taken,
        sample.slots_sealed,
    )
    return " | ".join(str(cell) for cell in cells)


def _print_verdict(report: Report, out: Console) -> None:
    out.print("process | memory MB | descriptors | threads, each before → after")
    for name, before in report.before.items():
        after = report.after.get(name, before)
        out.print(
            f"{name} | {before.memory_bytes / 1e6:.0f} → {after.memory_bytes / 1e6:.0f} | "
            f"{before.descriptors} → {after.descriptors} | {before.threads} → {after.threads}"
        )
    counts = report.seen.counts
    out.print(
        f"{counts['right']} right answers, {counts['left']} clients left, {len(report.faults)} "
        f"faults; {counts['wrong']} wrong, {report.seen.num_errors} failed, {counts['hang']} hang; "
        f"longest gap in a stream {report.seen.max_gap_s:.1f} s"
    )
    for line in [*report.seen.errors, *report.left]:
        out.print(Text(f"problem: {line}", style="red"))
    out.print("[bold green]ok[/]" if report.ok else "[bold red]not ok[/]")


def _charts(report: Report) -> list[Chart]:
    def chart(title: str, label: str, *names: str) -> Chart:
        made = tuple(
            Series(
                name.replace("_", " "), tuple((s.at_s, float(getattr(s, name))) for s in samples)
            )
            for name in names
        )
        return Chart(title, "seconds", label, made)

    samples = report.samples
    return [
        chart("Memory of all processes", "MB", "memory_mb"),
        chart("Descriptors and threads", "", "descriptors", "threads"),
        chart("Slots", "", "slots_taken", "slots_sealed"),
        chart("Questions", "", "answers", "left", "errors", "wrong"),
    ]
