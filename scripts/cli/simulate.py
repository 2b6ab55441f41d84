"""`moonpool simulate`: what a cluster would do with a trace; needs no cluster."""

from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress

from scripts.cli.output import CommandError, console, print_json
from scripts.simulate.hit_rate_table import hit_rate_json, hit_rate_table, measure_all
from scripts.simulate.traces import load_trace
from shared.simulator.hit_rate import LAB_POLICIES
from shared.simulator.trace import BLOCK_TOKENS


def simulate(
    trace: Annotated[
        str, typer.Option(help="A JSONL trace, or its name in the folder MOONPOOL_TRACES.")
    ] = "conversation",
    policy: Annotated[
        str | None, typer.Option(help="One or more policies, separated by commas.")
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Simulate placement, caching and load on a request trace.

    Examples:

      moonpool simulate --hit-rate --trace conversation

      moonpool simulate --hit-rate --trace conversation --policy lru,belady --sizes 3M,30M --json
    """
    if not hit_rate:
        raise CommandError("nothing to simulate", hint="moonpool simulate --hit-rate")
    policies = _names(policy, LAB_POLICIES)
    sizes_tokens = [_tokens(size) for size in sizes.split(",")]
    requests = load_trace(trace)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("hit rates", total=len(policies) * len(sizes_tokens))
        rates = measure_all(requests, policies, sizes_tokens, mode, lambda: progress.advance(task))
    if as_json:
        print_json(hit_rate_json(trace, mode, rates))
    else:
        Console(highlight=False).print(hit_rate_table(trace, mode, rates))


def _names(given: str | None, known: tuple[str, ...]) -> list[str]:
    if given is None:
        return list(known)
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise CommandError(
                f"--policy: {name!r} is not known", hint=f"one of {', '.join(known)}"
            )
    return list(dict.fromkeys(names))


def _tokens(size: str) -> int:
    """`3M`, `500k` or a whole number."""
    text = size.strip().lower()
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:], 1)
    try:
        tokens = round(float(text.rstrip("km")) * factor)
    except ValueError:
        raise CommandError(f"--sizes: {size!r} is no size", hint="such as 3M,30M") from None
    if tokens < BLOCK_TOKENS:
        raise CommandError(f"--sizes: {size!r} holds no block of {BLOCK_TOKENS} tokens")
    return tokens
