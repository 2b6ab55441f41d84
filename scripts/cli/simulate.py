"""`moonpool simulate`: what a cluster would do with a trace; needs no cluster."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress

from scripts.charts.files import check_plot, write_charts
from scripts.cli.output import CommandError, console, print_json
from scripts.simulate.cluster_table import outcomes_charts, outcomes_json, outcomes_table
from scripts.simulate.experiment_table import experiment_json, experiment_table
from scripts.simulate.experiments import EXPERIMENTS, LATER
from scripts.simulate.hit_rate_table import (
    hit_rate_chart,
    hit_rate_json,
    hit_rate_table,
    measure_all,
)
from scripts.simulate.lab import Lab, Tick
from scripts.simulate.traces import GENERATED, TRACE_HELP, load_trace
from shared.scheduling.policies.registry import POLICIES
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.fifo_bound import fifo_bound_ttfts_s
from shared.simulator.hardware import load_hardware
from shared.simulator.hit_rate import LAB_POLICIES
from shared.simulator.outcome import Outcome
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import BLOCK_TOKENS, Mode, TraceRequest

GC_ALLOCATIONS = 200_000
DEFAULT_POLICIES = "moonpool,global_cache_aware,local_cache_aware"


def simulate(
    trace: Annotated[
        str,
        typer.Option(help=TRACE_HELP),
    ] = GENERATED,
    policy: Annotated[
        str | None, typer.Option(help="One or more policies, separated by commas.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Prefill nodes.")] = 8,
    decodes: Annotated[int, typer.Option(min=1, help="Decode instances.")] = 8,
    pool: Annotated[str, typer.Option(help="Tokens that each node's pool holds.")] = "3M",
    eviction: Annotated[str, typer.Option(help="Eviction policy of the pools.")] = "lru",
    hardware: Annotated[str, typer.Option(help="A profile's name or its JSON file.")] = (
        "a800-llama3-70b"
    ),
    hit_rate: Annotated[
        bool, typer.Option("--hit-rate", help="Compare eviction policies on one pool.")
    ] = False,
    sizes: Annotated[str, typer.Option(help="Pool sizes of --hit-rate, in tokens.")] = (
        "1M,3M,10M,20M,30M,50M"
    ),
    mode: Annotated[
        Literal["served", "trace"],
        typer.Option(help="served: full blocks; trace: the last, partial block counts too."),
    ] = "served",
    experiment: Annotated[
        str | None, typer.Option(help=f"One of the paper's: {', '.join(EXPERIMENTS)}.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of placement and of a generated trace.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Charts, to a .html or (with matplotlib) a .png file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Simulate placement, caching and load on a request trace, with the real conductor.

    Examples:

      moonpool simulate --nodes 4

      moonpool simulate --trace conversation --nodes 8 --policy moonpool,local_cache_aware

      moonpool simulate --experiment fig14

      moonpool simulate --trace conversation --hit-rate --policy lru,belady --sizes 3M,30M --json
    """
    _collect_rarely()
    check_plot(plot)
    if hit_rate:
        _hit_rates(trace, load_trace(trace, seed), policy, sizes, mode, plot, as_json=as_json)
        return
    try:
        base = ClusterSettings(
            load_hardware(hardware),
            num_prefills=nodes,
            num_decodes=decodes,
            pool_tokens=_tokens("--pool", pool),
            eviction=_names("--eviction", eviction, LAB_POLICIES[:-1])[0],
            seed=seed,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    if experiment is not None:
        _experiment(experiment, base, plot, as_json=as_json)
        return
    requests = load_trace(trace, seed)
    names = _names("--policy", policy or DEFAULT_POLICIES, tuple(POLICIES))
    outcomes = _run(requests, base, names)
    bound_s = fifo_bound_ttfts_s(requests, nodes, base.hardware)
    if plot is not None:
        write_charts(plot, f"{trace}: policies", outcomes_charts(outcomes))
    if as_json:
        print_json(outcomes_json(trace, outcomes, bound_s))
    else:
        title = f"{trace}: {nodes} prefill nodes of {pool} tokens, {decodes} decode, {hardware}"
        Console(highlight=False).print(outcomes_table(title, outcomes, bound_s))


def _experiment(name: str, base: ClusterSettings, plot: Path | None, *, as_json: bool) -> None:
    if name in LATER:
        raise CommandError(LATER[name])
    (known,) = _names("--experiment", name, tuple(EXPERIMENTS))[:1]
    run = EXPERIMENTS[known]
    with Progress(console=console, transient=True) as progress:

        def start_run(label: str, total: int) -> Tick:
            task = progress.add_task(f"{known}: {label}", total=total)
            return lambda: progress.advance(task)

        report = run(Lab(base, load_trace, start_run))
    title = f"{known}: {(run.__doc__ or '').strip().splitlines()[0]}"
    if plot is not None:
        write_charts(plot, title, report.charts)
    if as_json:
        print_json(experiment_json(known, report.rows))
    else:
        Console(highlight=False).print(experiment_table(title, report.rows))


def _run(
    requests: Sequence[TraceRequest], base: ClusterSettings, names: Sequence[str]
) -> list[Outcome]:
    outcomes = []
    with Progress(console=console, transient=True) as progress:
        for name in names:
            task = progress.add_task(name, total=len(requests))
            cluster = SimulatedCluster(replace(base, policy=name))
            outcomes.append(cluster.run(requests, lambda task=task: progress.advance(task)))  # type: ignore[misc]
    return outcomes


def _hit_rates(
    trace: str,
    requests: Sequence[TraceRequest],
    policy: str | None,
    sizes: str,
    mode: Mode,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    policies = list(LAB_POLICIES)
    if policy is not None:
        policies = _names("--policy", policy, LAB_POLICIES)
    sizes_tokens = [_tokens("--sizes", size) for size in sizes.split(",")]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("hit rates", total=len(policies) * len(sizes_tokens))
        rates = measure_all(requests, policies, sizes_tokens, mode, lambda: progress.advance(task))
    if plot is not None:
        write_charts(plot, f"{trace}: hit rates", [hit_rate_chart(trace, rates)])
    if as_json:
        print_json(hit_rate_json(trace, mode, rates))
    else:
        Console(highlight=False).print(hit_rate_table(trace, mode, rates))


def _collect_rarely() -> None:
    """A simulation makes millions of objects and hardly a cycle: looking for those took a seventh
    of its time."""
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS)


def _names(option: str, given: str, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise CommandError(
                f"{option}: {name!r} is not known", hint=f"one of {', '.join(known)}"
            )
    if not names:
        raise CommandError(f"{option}: names nothing", hint=f"one of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _tokens(option: str, size: str) -> int:
    """`3M`, `500k` or a whole number."""
    text = size.strip().lower()
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:], 1)
    try:
        tokens = round(float(text.rstrip("km")) * factor)
    except (ValueError, OverflowError):
        raise CommandError(f"{option}: {size!r} is no size", hint="such as 3M or 500k") from None
    if tokens < BLOCK_TOKENS:
        raise CommandError(f"{option}: {size!r} holds no block of {BLOCK_TOKENS} tokens")
    return tokens
