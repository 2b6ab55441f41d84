"""`moonpool restart`: the processes of a cluster on this machine, one after the other."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import httpx
import typer

from scripts.cli.asking import JsonOption, YesOption, confirm
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.target import find_target, need_target
from scripts.launcher import state_file
from scripts.launcher.rolling import Restarted, Running, processes_of, restart_all
from scripts.launcher.state_file import RunningCluster


def restart(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Processes (`gateway-1`) or services (`gateway`); none: all of them."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="For each of them to be ready again.")
    ] = 180.0,
    yes: YesOption = False,
    url: Annotated[
        str | None, typer.Option(help="API of the cluster; else the one that runs here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Restart services of a cluster that `moonpool up` runs here, one after the other.

    Each is told to drain and started anew, and the next one waits until it is ready. Clients see
    no error: a gateway hands its socket to its successor and finishes its own answers, and the
    others hand over what they have. NATS and Redis are left alone. Exit code 0 when all are ready.

    Examples:

      moonpool restart --yes

      moonpool restart gateway

      moonpool restart prefill-2 decode-2 --yes --json
    """
    cluster = _running(url)
    chosen = _chosen(processes_of(cluster.pid, cluster.nats_url), names or [])
    said = ", ".join(one.member.id for one in chosen)
    confirm(f"Restart {said}, one after the other?", is_yes=yes, as_json=as_json)
    done = asyncio.run(_restart(cluster, chosen, timeout_s))
    if as_json:
        rows = [
            {"id": one.member.id, "service": one.member.service, "seconds": round(one.seconds, 1)}
            for one in done
        ]
        print_json({"restarted": rows})


def _running(url: str | None) -> RunningCluster:
    """The cluster of this machine that is meant."""
    target = need_target(find_target(url))
    for one in state_file.find_running():
        if (one.base_url, one.nats_url) == (target.base_url, target.nats_url):
            return one
    raise CommandError(
        f"no `moonpool up` on this machine serves {target.base_url}",
        hint="run it where that cluster was started; there SIGTERM to a process restarts it too",
    )


def _chosen(found: Sequence[Running], names: Sequence[str]) -> list[Running]:
    known = {one.member.id for one in found} | {one.member.service for one in found}
    unknown = [name for name in names if name not in known]
    if unknown or not found:
        there = ", ".join(one.member.id for one in found) or "none"
        raise CommandError(
            f"there is no process or service {', '.join(unknown)}".rstrip(),
            hint=f"those of this cluster: {there}",
        )
    wanted = set(names)
    return [one for one in found if not wanted or {one.member.id, one.member.service} & wanted]


async def _restart(
    cluster: RunningCluster, chosen: Sequence[Running], timeout_s: float
) -> list[Restarted]:
    target = need_target(find_target(cluster.base_url))
    bus, done = await target.connect("restart"), []
    try:
        # Whether our own gateway is ready is asked on this machine: no name to verify.
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            async for one in restart_all(bus, http, cluster.base_url, chosen, timeout_s):
                console.print(f"{one.member.id} is ready again after {one.seconds:.1f} s")
                done.append(one)
    finally:
        await bus.close()
    return done
