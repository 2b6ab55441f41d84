"""`moonpool doctor`: what this machine offers to a node, and what to change."""

import asyncio
import os
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from scripts.assess.machine import measure_link
from scripts.cli.output import CommandError, print_json
from scripts.doctor.check import Check
from scripts.doctor.machine import machine_checks
from scripts.doctor.model import model_check
from scripts.doctor.servers import server_checks
from scripts.doctor.transports import transport_checks
from scripts.launcher.options import DEFAULT_MODEL
from services.transfer.settings import TransferSettings
from shared.runtime.settings import PREFIX
from shared.transport.topology import Topology, read_topology


def doctor(
    link: Annotated[
        str | None,
        typer.Option(help="host:port of a machine that runs `moonpool assess --serve PORT`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at what a node needs: memory, limits, clock, links, transports, NATS, Redis, model.

    Reads the same MOONPOOL_ variables as the services. Without them it looks at the cluster that
    runs here, if one does. Exit code 1 when something must be changed before a node can run.

    Examples:

      moonpool doctor

      MOONPOOL_NATS_URL=nats://nats.lan:4222 moonpool doctor --link peer.lan:7777

      MOONPOOL_TRANSPORTS=tcp moonpool doctor --json | jq .checks
    """
    try:
        settings = TransferSettings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + "_".join(map(str, first["loc"])).upper()
        raise CommandError(f"{name}: {first['msg']}", hint="correct or unset it") from None
    topology = read_topology()
    checks = machine_checks(settings, topology) + asyncio.run(_ask(settings, link))
    checks.append(model_check(os.environ.get("MOONPOOL_MODEL", DEFAULT_MODEL)))
    is_ok = not any(check.problem for check in checks)
    if as_json:
        shown = [_shown(check) for check in checks]
        print_json({"ok": is_ok, "checks": shown, "topology": topology.as_json()})
    else:
        _print(checks, topology)
    raise typer.Exit(0 if is_ok else 1)


async def _ask(settings: TransferSettings, link: str | None) -> list[Check]:
    checks = await transport_checks(settings)
    checks += await server_checks()
    if link is not None:
        speed = await measure_link(link)
        checks.append(Check("link", f"{speed / 1e6:,.0f} MB/s to {link} over one TCP stream"))
    return checks


def _shown(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "found": check.found,
        "ok": not check.problem,
        "problem": check.problem,
    }


def _print(checks: list[Check], topology: Topology) -> None:
    out = Console(highlight=False)
    table = Table(title="this machine", title_justify="left")
    for column in ("what", "found", "do"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(check.name, check.found, f"[red]{check.problem}[/]" if check.problem else "")
    out.print(table)
    paths = Table(title="NICs by memory", title_justify="left")
    for column in ("memory", "preferred", "secondary"):
        paths.add_column(column)
    for memory, each in topology.matrix().items():
        paths.add_row(memory, ", ".join(each.preferred) or "-", ", ".join(each.secondary) or "-")
    out.print(paths)
