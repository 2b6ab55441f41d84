"""`moonpool bench overlap`: what of moving KV to decode is hidden under computing it."""

import asyncio
import os
from collections.abc import Callable
from typing import Annotated

import typer

from scripts.bench.overlap import OverlapError, Streamed, bars_of, measure_overlap
from scripts.cli.bench_output import show_bars
from scripts.cli.output import CommandError, console
from scripts.cli.progress import ClusterView
from scripts.cli.stopping import first_of, watch_signals
from scripts.cli.up import check_model
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import DEFAULT_MODEL, ClusterOptions
from scripts.launcher.readiness import ask_conductor
from scripts.replay.player import Player

POOL_BYTES = 1 << 30
PREFILL, DECODE = "prefill-1", "decode-2"


def overlap(
    tokens: Annotated[int, typer.Option(min=512, help="Of a prompt.")] = 8_000,
    prompts: Annotated[int, typer.Option(min=1, help="One after the other.")] = 3,
    transport: Annotated[str, typer.Option(help="tcp, local or rdma.")] = "tcp",
    model: Annotated[str, typer.Option(help="Of the cluster.")] = DEFAULT_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure how much of a long prompt's KV reaches another node while it is still computed.

    Starts a cluster of two nodes; one prefills each prompt, the other decodes it. Exit code 0 only
    if the bars are ok.

    Examples:

      moonpool bench overlap

      moonpool bench overlap --tokens 2048 --transport local --json
    """
    check_model(model)
    found = asyncio.run(_overlap(model, transport, tokens, prompts))
    if found is None:
        raise typer.Exit(130)
    title = f"overlap of {tokens} tokens, {model}; load {os.getloadavg()[0]:.1f}"
    more = {"prompts": [one.as_json() for one in found]}
    raise typer.Exit(show_bars(bars_of(found), title=title, as_json=as_json, more=more))


async def _overlap(model: str, transport: str, tokens: int, prompts: int) -> list[Streamed] | None:
    """What the bills say; None when the user broke it off."""
    options = ClusterOptions(
        model=model,
        nodes=2,
        pool_bytes=POOL_BYTES,
        log_level="WARNING",
        extra_env={"transfer": {"MOONPOOL_TRANSPORTS": transport}},
    )
    with ClusterView(console, title=f"starting {model}", is_showing_logs=False) as view:
        cluster = LocalCluster(options, on_death=view.on_death)
        stopping = watch_signals(cluster)
        async with cluster:
            await first_of(stopping, cluster.wait_ready(on_progress=view.on_progress))
            view.finish()
            if stopping.is_set():
                return None
            with console.status("asking") as status:
                try:
                    return await first_of(
                        stopping,
                        _measure(cluster, model, tokens, prompts, lambda line: status.update(line)),
                    )
                except OverlapError as error:
                    cluster.is_keeping_logs = True
                    raise CommandError(
                        str(error), hint=f"the logs are in {cluster.folder.logs}"
                    ) from None


async def _measure(
    cluster: LocalCluster, model: str, tokens: int, prompts: int, say: Callable[[str], None]
) -> list[Streamed]:
    state = await ask_conductor(cluster.bus)
    grid = next((one.grid_tokens for one in state.models if one.name == model), 0) if state else 0
    if not grid:
        raise OverlapError("the conductor does not know the model")
    return await measure_overlap(
        Player(
            cluster.base_url,
            model,
            cluster.admin_key,
            placement={"prefill": PREFILL, "decode": DECODE},
        ),
        num_tokens=tokens,
        grid_tokens=grid,
        num_prompts=prompts,
        on_run=lambda number: say(f"prompt {number + 1} of {prompts}"),
    )
