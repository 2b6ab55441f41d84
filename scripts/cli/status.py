"""`moonpool status`: who is there, who is ready; the exit code tells health."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from scripts.cli.output import print_json
from scripts.cli.target import Target, find_target, need_target
from scripts.index.asking import IndexAsker
from scripts.launcher import readiness
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from shared.messages.index import IndexStats
from shared.messages.micro import MicroPing
from shared.runtime.errors import ServiceError

ROLES = ("gateway", "conductor", "cache-index", "transfer", "prefill", "decode")
GATHER_S = 0.5


def status(
    nats: Annotated[
        str | None, typer.Option(help="NATS of the cluster; else the one that runs here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show services, nodes and instances. Exit code 0 when all of them are healthy.

    Examples:

      moonpool status

      moonpool status --json | jq .problems

      moonpool status --nats nats://my-nats:4222
    """
    processes, state, indexes = asyncio.run(_look(need_target(find_target(nats=nats))))
    problems = problems_of(processes, state, indexes)
    if as_json:
        print_json(_as_json(processes, state, problems))
    else:
        _print_tables(processes, state, problems)
    raise typer.Exit(1 if problems else 0)


async def _look(
    target: Target,
) -> tuple[list[MicroPing], StateReply | None, list[IndexStats | str]]:
    bus = await target.connect("status")
    try:
        processes = await bus.gather(subjects.MICRO_PING, Empty(), MicroPing, within_s=GATHER_S)
        state = await readiness.ask_conductor(bus)
        asker = IndexAsker(bus)
        names = sorted(one.name_of for one in processes if one.role == "cache-index")
        indexes = list(await asyncio.gather(*(_stats_of(asker, name) for name in names)))
    finally:
        await bus.close()
    ours = [process for process in processes if process.role in ROLES]
    ours.sort(key=lambda process: (ROLES.index(process.role), process.name_of))
    return ours, state, indexes


async def _stats_of(asker: IndexAsker, name: str) -> IndexStats | str:
    """Its name when it does not say."""
    try:
        return await asker.stats(name)
    except ServiceError:
        return name


def problems_of(
    processes: list[MicroPing], state: StateReply | None, indexes: Sequence[IndexStats | str] = ()
) -> list[str]:
    """What keeps the cluster from being healthy; empty when nothing does."""
    present = {process.role for process in processes}
    problems = [f"no {role} answers" for role in ROLES if role not in present]
    for one in indexes:
        if isinstance(one, str):
            problems.append(f"{one} does not say how it is")
        elif not one.is_redis_up:
            problems.append(f"{one.index} cannot reach Redis")
    if state is None:
        silent = ["no conductor says what it sees"] if "conductor" in present else []
        return problems + silent
    unready = (one for one in readiness.reports_of(state) if one.state != "ready")
    problems.extend(f"{one.id} is {one.state}" for one in unready)
    problems.extend(
        f"{one.id} ({one.service}) is quarantined: {one.reason}" for one in state.quarantined
    )
    if not state.models:
        problems.append("no model is served")
    return problems


def _as_json(
    processes: list[MicroPing], state: StateReply | None, problems: list[str]
) -> dict[str, Any]:
    shown = StateReply(conductor="") if state is None else state
    return {
        "ok": not problems,
        "problems": problems,
        "services": [
            {
                "service": process.role,
                "id": process.name_of,
                "version": process.version,
                "metrics": process.metrics_url or None,
            }
            for process in processes
        ],
        "instances": [report.model_dump(mode="json") for report in shown.instances],
        "nodes": [report.model_dump(mode="json") for report in shown.nodes],
        "gateways": [report.model_dump(mode="json") for report in shown.gateways],
        "quarantined": [one.model_dump(mode="json") for one in shown.quarantined],
        "models": [{"name": m.name, "context_tokens": m.context_tokens} for m in shown.models],
    }


def _print_tables(
    processes: list[MicroPing], state: StateReply | None, problems: list[str]
) -> None:
    out = Console(highlight=False)
    services = Table("service", "id", "state", title="processes", title_justify="left")
    reports = () if state is None else readiness.reports_of(state)
    states = {(report.service, report.id): report.state for report in reports}
    for process in processes:
        services.add_row(process.role, process.name_of, _state_of(process, states))
    out.print(services)
    if state is not None:
        out.print(_nodes_table(state))
        out.print(_instances_table(state))
    for problem in problems:
        out.print(f"[bold red]problem:[/] {problem}")
    if not problems:
        out.print("[bold green]healthy[/]")


def _state_of(process: MicroPing, states: Mapping[Any, str]) -> str:
    return states.get((process.role, process.name_of), "answers")


def _nodes_table(state: StateReply) -> Table:
    table = Table(
        "node", "slots", "free", "sealed", "leased", "fetched MB", "streamed MB", "evictions"
    )
    for node in sorted(state.nodes, key=lambda report: report.id):
        table.add_row(
            node.id,
            str(node.slots_total),
            str(node.slots_free),
            str(node.slots_sealed),
            str(node.slots_leased),
            f"{node.bytes_fetched_total / 1e6:.1f}",
            f"{node.bytes_streamed_total / 1e6:.1f}",
            str(node.evictions_total),
        )
    return table


def _instances_table(state: StateReply) -> Table:
    table = Table("instance", "role", "node", "model", "queued", "running", "free tokens")
    for instance in sorted(state.instances, key=lambda report: (report.service, report.id)):
        table.add_row(
            instance.id,
            instance.service,
            instance.node,
            instance.model,
            str(instance.queued_requests),
            str(instance.running),
            str(instance.free_tokens) if instance.service == "decode" else "",
        )
    return table
