"""`moonpool demo`: the point of the project on real input."""

import asyncio
import json
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

import scripts.demo
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.progress import ClusterView
from scripts.cli.stopping import first_of, watch_signals
from scripts.cli.target import Target, conductor_state, find_target
from scripts.cli.up import check_model
from scripts.demo.client import Asker, AskError
from scripts.demo.plan import PlanError, plan
from scripts.demo.run import Row, run
from scripts.demo.table import bills_of, table_of
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import DEFAULT_MODEL, ClusterOptions

FOLDER = Path(scripts.demo.__file__).parent
TABLE_WIDTH = 100


def demo(
    url: Annotated[
        str | None, typer.Option(help="A cluster; else the one that runs here, else its own.")
    ] = None,
    nats: Annotated[str | None, typer.Option(help="NATS of that cluster.")] = None,
    admin_key: Annotated[
        str | None, typer.Option(help="Of its gateway; read from the cluster that runs here.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="For the cluster that the demo starts itself.")
    ] = DEFAULT_MODEL,
    text: Annotated[
        Path,
        typer.Option(exists=True, dir_okay=False, help="Another text to read.", show_default=False),
    ] = FOLDER / "text.md",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Ask five questions about one long text on two nodes, then ask them again without a cache.

    Shows who computed, what was reused and from where, what moved, what it cost, and that no hit
    changed an answer. Exit code 0 only if that is so. Without a cluster it starts one and stops it.

    Examples:

      moonpool demo

      moonpool demo --json | jq '.requests[] | {cached_from, ttft_s}'

      moonpool demo --url http://my-host:8000 --nats nats://my-host:4222 --admin-key ...
    """
    target = find_target(url, nats, admin_key)
    questions: list[str] = json.loads((FOLDER / "questions.json").read_text())
    rows = asyncio.run(_demo(target, model, text.read_text(), questions, max_tokens))
    if rows is None:
        raise typer.Exit(130)
    problems = [
        f"request {number} ({row.step.what}): {problem}"
        for number, row in enumerate(rows, 1)
        for problem in row.problems
    ]
    if as_json:
        print_json({"ok": not problems, "requests": [row.as_json() for row in rows]})
    else:
        _show(rows)
    for problem in problems:
        console.print(f"[bold red]not as it must be:[/] {problem}")
    raise typer.Exit(1 if problems else 0)


async def _demo(
    target: Target | None, model: str, text: str, questions: Sequence[str], max_tokens: int
) -> list[Row] | None:
    """The rows; None when the user broke it off."""
    if target is not None:
        console.print(f"using the cluster at {target.base_url}")
        return await _ask(target, text, questions, max_tokens)
    check_model(model)
    options = ClusterOptions(model=model, log_level="WARNING")
    with ClusterView(console, title=f"starting {model}", is_showing_logs=False) as view:
        cluster = LocalCluster(options, on_death=view.on_death)
        stopping = watch_signals(cluster)
        async with cluster:
            await first_of(stopping, cluster.wait_ready(on_progress=view.on_progress))
            view.finish()
            if stopping.is_set():
                return None
            own = Target(cluster.base_url, cluster.nats_url, cluster.admin_key, cluster.nats_access)
            try:
                return await first_of(stopping, _ask(own, text, questions, max_tokens))
            except CommandError as error:
                cluster.is_keeping_logs = True
                raise CommandError(
                    error.message, hint=f"the logs are in {cluster.folder.logs}"
                ) from None


async def _ask(target: Target, text: str, questions: Sequence[str], max_tokens: int) -> list[Row]:
    if not target.admin_key:
        raise CommandError(
            "placing requests needs the cluster's admin key",
            hint="give it with --admin-key or MOONPOOL_ADMIN_KEY",
        )
    state = await conductor_state(target, "demo")
    if not state.models:
        raise CommandError("the cluster serves no model yet", hint="see `moonpool status`")
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        asker = Asker(
            http=http,
            base_url=target.base_url,
            admin_key=target.admin_key,
            model=state.models[0].name,
            text=text,
            # Digits are a token each: every reading has the same length.
            reading=f"{secrets.randbelow(10**8):08}",
            max_tokens=max_tokens,
        )
        status = stack.enter_context(console.status("asking"))

        def on_step(what: str) -> None:
            status.update(what)
            if not console.is_terminal:
                console.print(what)

        try:
            return await run(asker, plan(state.instances, questions), on_step)
        except PlanError as error:
            raise CommandError(f"the demo {error}", hint="moonpool up --nodes 2") from None
        except AskError as error:
            raise CommandError(str(error), hint="see `moonpool status` and the logs") from None


def _show(rows: Sequence[Row]) -> None:
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=TABLE_WIDTH)
    out.print(table_of(rows))
    out.print(bills_of({str(at): row.answer.served.bill for at, row in enumerate(rows, 1)}))
    for number, row in enumerate(rows, 1):
        out.print(f"{number}. {row.step.what}: {row.step.question}", style="bold", markup=False)
        out.print(f"   {row.answer.text.strip()}", markup=False)
