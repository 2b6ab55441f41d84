"""`moonpool node`: one node on this host, as part of a cluster that runs elsewhere."""

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Annotated

import typer

from scripts.cli.launch_options import (
    DTYPES,
    LOG_LEVELS,
    MODES,
    DecodeTokensOption,
    DrainTimeoutOption,
    DtypeOption,
    JsonWhenReadyOption,
    KeepLogsOption,
    LogLevelOption,
    ModeOption,
    RunDirOption,
    ThreadsOption,
    check_choices,
)
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.progress import ClusterView
from scripts.cli.stopping import first_of, watch_signals
from scripts.cli.up import check_model, parse_size
from scripts.launcher.errors import LaunchError
from scripts.launcher.joined_node import JoinedNode
from scripts.launcher.options import DEFAULT_DECODE_TOKENS, DEFAULT_MODEL, ClusterOptions
from shared.runtime.bus import redacted


def node(
    nats: Annotated[
        str,
        typer.Option(envvar="MOONPOOL_NATS_URL", help="NATS of the cluster.", show_default=False),
    ],
    credentials: Annotated[
        Path | None,
        typer.Option(help="The cluster's set, or a copy with transfer, prefill and decode in it."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the node, like no other's; else this host's name.")
    ] = None,
    model: Annotated[
        str, typer.Option(envvar="MOONPOOL_MODEL", help="The same as the cluster's.")
    ] = DEFAULT_MODEL,
    prefill: Annotated[int, typer.Option(min=0, help="Prefill workers.")] = 1,
    decode: Annotated[int, typer.Option(min=0, help="Decode workers.")] = 1,
    both: Annotated[int, typer.Option(min=0, help="Workers that do both.")] = 0,
    advertise: Annotated[
        str,
        typer.Option(
            envvar="MOONPOOL_TCP_HOST",
            help="Address at which other nodes reach this one; else the one on the way to NATS.",
        ),
    ] = "",
    ports: Annotated[
        str,
        typer.Option(
            envvar="MOONPOOL_TCP_PORTS", help="Port or range for KV, as 7400-7499; else a free one."
        ),
    ] = "",
    pool_size: Annotated[
        str, typer.Option(envvar="MOONPOOL_POOL_BYTES", help="KV pool, such as 512M or 64G.")
    ] = "768M",
    decode_tokens: DecodeTokensOption = DEFAULT_DECODE_TOKENS,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    threads: ThreadsOption = None,
    drain_timeout_s: DrainTimeoutOption = 10.0,
    log_level: LogLevelOption = "INFO",
    run_dir: RunDirOption = None,
    keep_logs: KeepLogsOption = False,
    as_json: JsonWhenReadyOption = False,
) -> None:
    """Start a node on this host, join a cluster, and supervise it until Ctrl-C.

    A transfer service with its pool, and prefill and decode workers. It needs the cluster's NATS
    and the KV ports of other nodes, nothing else; others need its --ports.

    Examples:

      moonpool node --nats nats://10.0.0.1:4222 --credentials ~/moonpool-credentials

      moonpool node --nats nats://10.0.0.1:4222 --name rack2-7 --advertise 10.0.1.7 --ports 7400

      moonpool node --nats nats://10.0.0.1:4222 --prefill 0 --decode 2 --pool-size 64G --json
    """
    check_choices(
        ("--log-level", log_level.upper(), LOG_LEVELS),
        ("--dtype", dtype, DTYPES),
        ("--mode", mode, MODES),
    )
    if not prefill + decode + both:
        raise CommandError("a node without workers does nothing", hint="give --prefill or --decode")
    check_model(model)
    kv = {"MOONPOOL_TCP_HOST": advertise, "MOONPOOL_TCP_PORTS": ports}
    options = ClusterOptions(
        name=name_of(name),
        model=model,
        nodes=1,
        prefill_per_node=prefill,
        decode_per_node=decode,
        both_per_node=both,
        gateways=0,
        conductors=0,
        cache_indexes=0,
        nats_url=nats,
        credentials=credentials,
        pool_bytes=parse_size(pool_size),
        decode_tokens=decode_tokens,
        dtype=dtype,
        mode=mode,
        threads=threads,
        drain_timeout_s=drain_timeout_s,
        log_level=log_level.upper(),
        run_dir=run_dir,
        is_keeping_logs=keep_logs,
        extra_env={"transfer": {key: value for key, value in kv.items() if value}},
    )
    asyncio.run(_serve(options, as_json=as_json))


def name_of(given: str | None) -> str:
    """A name for NATS subjects: the one that is given, else this host's."""
    name = given or re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().split(".")[0])
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise CommandError(f"--name {name}: letters, digits, - and _, 64 at most")
    return name


async def _serve(options: ClusterOptions, *, as_json: bool) -> None:
    where = redacted(options.nats_url or "")
    with ClusterView(console, title=f"node {options.name} joins {where}") as view:
        running = JoinedNode(options, on_line=view.on_line, on_death=view.on_death)
        stopping = watch_signals(running)
        async with running:
            await first_of(stopping, running.wait_ready(on_progress=view.on_progress))
            view.finish()
            if not stopping.is_set():
                _announce(running, where, as_json=as_json)
                failure = await first_of(stopping, running.wait_failed())
                if failure is not None:
                    hint = f"the logs are in {running.folder.logs}"
                    raise LaunchError(failure.message, hint=hint)
    kept = (
        f"the logs are in {running.folder.logs}" if running.is_keeping_logs else "nothing is left"
    )
    console.print(f"stopped; {kept}")


def _announce(running: JoinedNode, where: str, *, as_json: bool) -> None:
    console.print(f"node {running.options.name} is part of the cluster at {where}; Ctrl-C ends it")
    if as_json:
        print_json(
            {
                "node": running.options.name,
                "instances": list(running.names.all),
                "nats_url": where,
                "run_dir": str(running.folder.path),
                "pid": os.getpid(),
            }
        )
