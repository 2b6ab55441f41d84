"""`moonpool role`: an instance goes on in another role."""

import asyncio
from typing import Annotated, get_args

import typer

from scripts.cli.asking import JsonOption, NatsOption, YesOption, confirm
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.target import Target, find_target, need_target
from scripts.launcher.readiness import ask_conductor
from shared.messages import subjects
from shared.messages.common import Ok
from shared.messages.conductor import StateReply
from shared.messages.reports import InstanceReport
from shared.messages.worker import SetRole, WorkerRole
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

LOOK_AGAIN_S = 0.3
SERVICES: dict[str, set[str]] = {
    "prefill": {"prefill"},
    "decode": {"decode"},
    "both": {"prefill", "decode"},
}


def role(
    instance: Annotated[str, typer.Argument(help="Id of a prefill or decode instance.")],
    new_role: Annotated[str, typer.Argument(metavar="ROLE", help="prefill, decode or both.")],
    timeout_s: Annotated[float, typer.Option(min=0, help="Wait so long for the new role.")] = 60.0,
    yes: YesOption = False,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drain an instance and let it go on in another role; waits until it is ready in it.

    What runs in the old role ends there. The process keeps its model in memory.

    Examples:

      moonpool role prefill-2 decode

      moonpool role decode-1 both --yes --json
    """
    wanted = next((known for known in get_args(WorkerRole) if known == new_role), None)
    if wanted is None:
        raise CommandError(f"role {new_role!r} is none of {', '.join(get_args(WorkerRole))}")
    target = need_target(find_target(nats=nats))
    confirm(f"End what {instance} does and make it {wanted}?", is_yes=yes, as_json=as_json)
    with console.status(f"waiting for {instance} in its new role"):
        reports = asyncio.run(change_role(target, instance, wanted, timeout_s))
    if as_json:
        print_json(
            {"ok": True, "instances": [report.model_dump(mode="json") for report in reports]}
        )
        return
    for report in reports:
        console.print(f"{report.id} is {report.state} as {report.service} on node {report.node}")


async def change_role(
    target: Target, instance: str, wanted: WorkerRole, timeout_s: float
) -> list[InstanceReport]:
    """Its reports in the new role; raises CommandError when it is not ready in it in time."""
    bus = await target.connect("role")
    try:
        before = _of(await ask_conductor(bus), instance)
        subject = subjects.instance(before[0].service, instance, "role")
        try:
            await bus.request(subject, SetRole(role=wanted), Ok, timeout_s=5)
        except ServiceError as error:
            raise CommandError(f"{instance} did not take the role: {error}") from None
        return await _wait(bus, instance, SERVICES[wanted], timeout_s)
    finally:
        await bus.close()


async def _wait(
    bus: Bus, instance: str, services: set[str], timeout_s: float
) -> list[InstanceReport]:
    deadline_s = monotonic_s() + timeout_s
    while monotonic_s() < deadline_s:
        state = await ask_conductor(bus)
        found = [one for one in state.instances if one.id == instance] if state else []
        # The old role is heard of for a lease after its end.
        live = [one for one in found if one.state == "ready"]
        if {one.service for one in live} == services:
            return live
        await asyncio.sleep(LOOK_AGAIN_S)
    raise CommandError(
        f"{instance} is not ready as {' and '.join(sorted(services))} after {timeout_s:g} s",
        hint="what runs in the old role may still end; `moonpool status` shows it",
    )


def _of(state: StateReply | None, instance: str) -> list[InstanceReport]:
    if state is None:
        raise CommandError("no conductor answers", hint="`moonpool status` shows who is there")
    found = [report for report in state.instances if report.id == instance]
    if not found:
        known = ", ".join(sorted({report.id for report in state.instances})) or "none"
        raise CommandError(f"there is no instance {instance!r} (known: {known})")
    return found
