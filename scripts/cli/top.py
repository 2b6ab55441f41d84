"""`moonpool top`: a cluster in the terminal, live; what the dashboard shows, as text."""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console

from scripts.cli.output import CommandError, print_json
from scripts.cli.target import Target, find_target, need_target
from scripts.top.frame import ORDERS, Look, draw
from scripts.top.live import watch
from shared.overview.collector import Collector
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

NUM_REQUESTS = 200
FIRST_REPORTS_S = 0.7
"""By then every process that reports has done so."""
Order = Annotated[str, typer.Option("--sort", help=f"Requests by: {', '.join(ORDERS)}.")]


def top(
    nats: Annotated[
        str | None, typer.Option(help="NATS of the cluster; else the one that runs here.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    order: Order = "newest",
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.5, max=60, help="Seconds between looks.")
    ] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One look as one JSON object on stdout.")
    ] = False,
) -> None:
    """Nodes, instances, queues, hit rate, TTFT and TBT, requests with their bills, refusals.

    Keys: q ends, s sorts the requests otherwise, p pauses.

    Examples:

      moonpool top

      moonpool top --sort ttft

      moonpool top --once

      moonpool top --json | jq .summary.ttft_s

      moonpool top --nats nats://my-nats:4222
    """
    if order not in ORDERS:
        raise CommandError(f"--sort {order}: must be one of {', '.join(ORDERS)}")
    target = need_target(find_target(nats=nats))
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not (once or as_json or is_terminal):
        raise CommandError("top needs a terminal", hint="moonpool top --once, or --json")
    asyncio.run(_top(target, Look(order=order), once=once, interval_s=interval_s, as_json=as_json))


async def _top(target: Target, look: Look, *, once: bool, interval_s: float, as_json: bool) -> None:
    bus = await target.connect("top")
    collector = Collector(bus, max_requests=NUM_REQUESTS)
    try:
        await collector.start()
        if not (once or as_json):
            await watch(collector, look, interval_s=interval_s)
            return
        await asyncio.sleep(FIRST_REPORTS_S)
        await collector.refresh()
        overview, now_s = collector.overview, monotonic_s()
        if as_json:
            sections = overview.sections(now_s)
            is_good = not sections["cluster"]["problems"]
            print_json({"ok": is_good, **sections, "requests": overview.rows()})
        else:
            console = Console(highlight=False)
            console.print(draw(overview, look, now_s, console.width, None))
            is_good = not overview.sections(now_s)["cluster"]["problems"]
    except ServiceError as error:
        raise CommandError(error.message, hint="`moonpool status` shows who is there") from None
    finally:
        await collector.stop()
        await bus.close()
    if not is_good:
        raise typer.Exit(1)
