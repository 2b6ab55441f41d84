"""`moonpool up`: a whole cluster on this machine until Ctrl-C."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.panel import Panel

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
from scripts.credentials import credential_set
from scripts.launcher import state_file
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.errors import LaunchError
from scripts.launcher.options import DEFAULT_DECODE_TOKENS, DEFAULT_MODEL, ClusterOptions
from scripts.launcher.ports import reachable
from scripts.launcher.readiness import ask_conductor
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import locate
from shared.runtime.bus import redacted
from shared.scheduling.admission import ADMISSION_RULES
from shared.scheduling.policies.registry import POLICIES
from shared.simulator.hardware import load_hardware

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
DEFAULT_HOST = "127.0.0.1"


def up(
    model: Annotated[
        str,
        typer.Option(
            envvar="MOONPOOL_MODEL", help="Name, GGUF file, Hugging Face folder or dummy:<preset>."
        ),
    ] = DEFAULT_MODEL,
    nodes: Annotated[
        int, typer.Option(min=0, help="Nodes (pools with their workers); 0: all on other hosts.")
    ] = 2,
    prefill_per_node: Annotated[int, typer.Option(min=0, help="Prefill workers a node.")] = 1,
    decode_per_node: Annotated[int, typer.Option(min=0, help="Decode workers a node.")] = 1,
    both_per_node: Annotated[int, typer.Option(min=0, help="Workers a node that do both.")] = 0,
    port: Annotated[
        int,
        typer.Option(
            envvar="MOONPOOL_HTTP_PORT", min=0, max=65535, help="Of the API; 0: a free one."
        ),
    ] = 8000,
    host: Annotated[
        str, typer.Option(envvar="MOONPOOL_HTTP_HOST", help="Address the API listens on.")
    ] = "127.0.0.1",
    nats: Annotated[
        str | None, typer.Option(envvar="MOONPOOL_NATS_URL", help="Use this NATS.")
    ] = None,
    nats_host: Annotated[
        str, typer.Option(help="Address its own NATS listens at; other hosts join there.")
    ] = "127.0.0.1",
    nats_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of its own NATS; 0: a free one.")
    ] = 0,
    redis: Annotated[
        str | None, typer.Option(envvar="MOONPOOL_REDIS_URL", help="Use this Redis.")
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(help="Set made by `moonpool credentials`, for the servers that are given."),
    ] = None,
    http_cert: Annotated[
        Path | None, typer.Option(envvar="MOONPOOL_HTTP_CERT", help="PEM: serve HTTPS.")
    ] = None,
    http_key: Annotated[
        Path | None, typer.Option(envvar="MOONPOOL_HTTP_KEY", help="PEM key of --http-cert.")
    ] = None,
    pool_size: Annotated[
        str,
        typer.Option(envvar="MOONPOOL_POOL_BYTES", help="KV pool of a node, such as 512M or 4G."),
    ] = "768M",
    decode_tokens: DecodeTokensOption = DEFAULT_DECODE_TOKENS,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    policy: Annotated[
        str | None,
        typer.Option(envvar="MOONPOOL_POLICY", help=f"Placement policy: {', '.join(POLICIES)}."),
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            envvar="MOONPOOL_ADMISSION",
            help=f"How a TBT target is judged: {', '.join(ADMISSION_RULES)}.",
        ),
    ] = None,
    timed_by: Annotated[
        str | None,
        typer.Option(
            envvar="MOONPOOL_TIMED_BY",
            help="Dummy models: take the times of this hardware profile instead of computing.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    drain_timeout_s: DrainTimeoutOption = 10.0,
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="MOONPOOL_ADMIN_KEY", help="Allows `placement`; else a random one."),
    ] = None,
    log_level: LogLevelOption = "INFO",
    run_dir: RunDirOption = None,
    keep_logs: KeepLogsOption = False,
    as_json: JsonWhenReadyOption = False,
) -> None:
    """Start a whole cluster on this machine and supervise it until Ctrl-C.

    NATS, Redis, gateway, conductor and cache-index, and for each node a transfer service, prefill
    and decode workers. Nothing is left behind at the end: no process, no memory, no port.

    Examples:

      moonpool up

      moonpool up --nodes 3 --port 8080 --pool-size 2G

      moonpool up --prefill-per-node 0 --decode-per-node 0 --both-per-node 1

      moonpool up --model dummy:tiny --log-level DEBUG --keep-logs

      moonpool up --model dummy:small --timed-by here.json

      moonpool up --nats nats://my-nats:4222 --redis redis://my-redis:6379

      moonpool up --nodes 0 --nats-host 10.0.0.1 --nats-port 4222 --host 0.0.0.0
    """
    check_choices(
        ("--log-level", log_level.upper(), LOG_LEVELS),
        ("--policy", policy, POLICIES),
        ("--admission", admission, ADMISSION_RULES),
        ("--dtype", dtype, DTYPES),
        ("--mode", mode, MODES),
    )
    if nodes and both_per_node + min(prefill_per_node, decode_per_node) < 1:
        raise CommandError(
            "a cluster needs prefill and decode workers",
            hint="give --prefill-per-node and --decode-per-node, or --both-per-node",
        )
    if (http_cert is None) != (http_key is None):
        raise CommandError("--http-cert and --http-key need each other")
    options = ClusterOptions(
        model=model,
        nodes=nodes,
        prefill_per_node=prefill_per_node,
        decode_per_node=decode_per_node,
        both_per_node=both_per_node,
        host=host,
        port=port,
        nats_url=nats,
        nats_host=nats_host,
        nats_port=nats_port,
        redis_url=redis,
        credentials=credentials,
        http_cert=http_cert,
        http_key=http_key,
        pool_bytes=parse_size(pool_size),
        decode_tokens=decode_tokens,
        dtype=dtype,
        mode=mode,
        policy=policy,
        admission=admission,
        timed_by=check_timed_by(timed_by, model),
        threads=threads,
        drain_timeout_s=drain_timeout_s,
        admin_key=admin_key,
        log_level=log_level.upper(),
        run_dir=run_dir,
        is_keeping_logs=keep_logs,
    )
    check_model(model)
    check_port(host, port)
    asyncio.run(_serve(options, as_json=as_json))


def check_model(model: str) -> None:
    """A model that cannot be found is said before anything starts."""
    try:
        locate(model)
    except CheckpointError as error:
        raise CommandError(f"--model {error}") from None


def check_timed_by(timed_by: str | None, model: str) -> str | None:
    """The path made absolute: workers have other folders."""
    if timed_by is None:
        return None
    if not model.startswith("dummy:"):
        raise CommandError(
            "--timed-by: only dummy models can take the times of other hardware",
            hint="give --model dummy:small too",
        )
    try:
        load_hardware(timed_by)
    except ValueError as error:
        raise CommandError(f"--timed-by: {error}") from None
    return str(Path(timed_by).resolve()) if timed_by.endswith(".json") else timed_by


def check_port(host: str, port: int) -> None:
    """A busy port is often a cluster of one's own in another terminal."""
    url = f"http://{reachable(host)}:{port}"
    for known in state_file.find_running():
        if known.base_url == url:
            raise CommandError(
                f"a moonpool cluster (pid {known.pid}) serves {url} already",
                hint="use it (`moonpool chat`, `moonpool demo`), stop it (Ctrl-C in its terminal "
                f"or `kill {known.pid}`), or start another beside it with --port 0",
            )


def parse_size(text: str) -> int:
    """Bytes of `512M`, `4G`, `1.5G`, `4GiB` or a plain number."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in UNITS else ""
    try:
        size = int(float(number.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise CommandError(f"--pool-size {text} is no size", hint="write it as 512M or 4G")
    return size


async def _serve(options: ClusterOptions, *, as_json: bool) -> None:
    with ClusterView(console, title=f"starting {options.model}") as view:
        cluster = LocalCluster(options, on_line=view.on_line, on_death=view.on_death)
        stopping = watch_signals(cluster)
        async with cluster:
            await first_of(stopping, cluster.wait_ready(on_progress=view.on_progress))
            view.finish()
            if not stopping.is_set():
                await _serve_ready(cluster, stopping, as_json=as_json)
    if cluster.is_keeping_logs:
        console.print(f"stopped; the logs are in {cluster.folder.logs}")
    else:
        console.print("stopped, nothing is left behind")


async def _serve_ready(cluster: LocalCluster, stopping: asyncio.Event, *, as_json: bool) -> None:
    context = write_nats_context(cluster)
    served = await ask_conductor(cluster.bus)
    model = served.models[0].name if served and served.models else cluster.options.model
    state = state_file.describe(
        base_url=cluster.base_url,
        nats_url=cluster.nats_url,
        admin_key=cluster.admin_key,
        run_dir=cluster.folder.path,
        nats_access=cluster.nats_access,
    )
    path = state_file.write(state)
    cluster.folder.guard([cluster.folder.path, cluster.folder.shared_dir, path])
    try:
        announce(cluster, model, context, as_json=as_json)
        failure = await first_of(stopping, cluster.wait_failed())
        if failure is not None:
            raise LaunchError(failure.message, hint=f"the logs are in {cluster.folder.logs}")
    finally:
        path.unlink(missing_ok=True)


def write_nats_context(cluster: LocalCluster) -> Path:
    """A context of the nats CLI, which takes the path of a file wherever it takes a name."""
    path = cluster.folder.path / "nats-context.json"
    description = f"moonpool at {cluster.base_url}"
    return credential_set.write_nats_context(
        cluster.nats_access, cluster.nats_url, description, path
    )


def announce(cluster: LocalCluster, model: str, context: Path, *, as_json: bool) -> None:
    """Say where the cluster is and what to try."""
    url = f"{cluster.base_url}/v1"
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "What is a prefix cache?"}],
            "max_tokens": 64,
        }
    )
    console.print(
        Panel.fit(
            f"[bold green]ready[/]  OpenAI API at [bold]{url}[/]\n\n"
            "Three things to try in a second terminal (scripts/moonpool from a checkout):\n"
            "  moonpool chat\n"
            "  moonpool demo\n"
            "  the curl line below\n\n"
            "To look inside with the nats CLI:\n"
            f"  export NATS_CONTEXT={context}\n"
            "  nats micro ls\n\n"
            "Ctrl-C stops it all.",
            title="moonpool",
        )
    )
    # Outside of the frame, so that it can be copied whole.
    console.print(
        f"curl -s {url}/chat/completions -H 'content-type: application/json' -d '{body}'\n",
        soft_wrap=True,
        markup=False,
    )
    if cluster.options.nats_host != DEFAULT_HOST:
        console.print(
            "A node on another host, with a copy of the credentials:\n"
            f"  moonpool node --nats {redacted(cluster.nats_url)} --model {cluster.options.model} "
            f"--credentials {_folder_of(cluster) or '…'}\n",
            soft_wrap=True,
            markup=False,
        )
    if as_json:
        print_json(
            {
                "ok": True,
                "url": url,
                "model": model,
                # Passwords are in files that only this user can read, never here.
                "nats_url": redacted(cluster.nats_url),
                "redis_url": redacted(cluster.redis_url),
                "credentials": _folder_of(cluster),
                "nats_context": str(context),
                "run_dir": str(cluster.folder.path),
                "pids": {name: cluster.process(name).pid for name in cluster.names.all},
            }
        )


def _folder_of(cluster: LocalCluster) -> str | None:
    """Where the credentials of this cluster are; None: its servers were given without a set."""
    made = cluster.credentials
    return None if made is None else str(made.folder)
