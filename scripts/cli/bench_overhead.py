"""`moonpool bench overhead`: what serving adds to the engine's own time."""

import asyncio
import os
from typing import Annotated

import typer

from scripts.bench.overhead import OverheadError, Sample, bars_of, measure
from scripts.cli.bench_output import show_bars
from scripts.cli.output import CommandError, console
from scripts.cli.progress import ClusterView
from scripts.cli.stopping import first_of, watch_signals
from scripts.cli.up import check_model
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import ClusterOptions

POOL_BYTES = 64 << 20


def overhead(
    requests: Annotated[int, typer.Option(min=1, help="One after the other.")] = 200,
    model: Annotated[str, typer.Option(help="Its own time is taken off.")] = "dummy:tiny",
    words: Annotated[int, typer.Option(min=1, help="Of a prompt, about.")] = 32,
    pause_ms: Annotated[
        int, typer.Option(min=0, help="After each; 0 measures the end of one with the next.")
    ] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure what HTTP, placing, queueing and messages add to the time to first token.

    Starts a cluster of one node with a dummy model and asks it one request at a time, without a
    cache. From the time until the client has the first text, the prefill's own computing is taken
    off. Exit code 0 only if the bars are ok.

    Example:

      moonpool bench overhead --requests 500
    """
    check_model(model)
    samples = asyncio.run(_overhead(model, requests, words, pause_ms / 1000))
    if samples is None:
        raise typer.Exit(130)
    bars = bars_of(samples)
    title = f"overhead of serving, {model}; load {os.getloadavg()[0]:.1f}"
    raise typer.Exit(show_bars(bars, title=title, as_json=as_json))


async def _overhead(model: str, requests: int, words: int, pause_s: float) -> list[Sample] | None:
    """The samples; None when the user broke it off."""
    options = ClusterOptions(model=model, nodes=1, pool_bytes=POOL_BYTES, log_level="WARNING")
    with ClusterView(console, title=f"starting {model}", is_showing_logs=False) as view:
        cluster = LocalCluster(options, on_death=view.on_death)
        stopping = watch_signals(cluster)
        async with cluster:
            await first_of(stopping, cluster.wait_ready(on_progress=view.on_progress))
            view.finish()
            if stopping.is_set():
                return None
            with console.status("asking") as status:

                def on_run(number: int) -> bool:
                    status.update(f"request {number} of {requests}")
                    return not stopping.is_set()

                asking = asyncio.to_thread(
                    measure,
                    cluster.base_url,
                    model,
                    num_requests=requests,
                    num_words=words,
                    pause_s=pause_s,
                    on_run=on_run,
                )
                try:
                    return await first_of(stopping, asking)
                except OverheadError as error:
                    cluster.is_keeping_logs = True
                    raise CommandError(
                        str(error), hint=f"the logs are in {cluster.folder.logs}"
                    ) from None
