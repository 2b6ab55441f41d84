"""`moonpool drain`: an instance or a node is taken out of work, or back."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from scripts.cli.asking import LOOK_HINT, JsonOption, NatsOption, YesOption, confirm, on_bus
from scripts.cli.on_nodes import need_state
from scripts.cli.output import CommandError, console, print_json
from shared.messages import subjects
from shared.messages.conductor import StateReply
from shared.messages.reports import InstanceReport
from shared.messages.transfer import NodeDrain, NodeDrainReply
from shared.messages.worker import Drain, DrainReply
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s

ASK_TIMEOUT_S = 5.0
LOOK_AGAIN_S = 0.3


@dataclass(slots=True)
class Drained:
    """What became of it."""

    name: str
    instances: list[InstanceReport] = field(default_factory=list)
    node: str | None = None
    moved_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        states = [
            {"id": one.id, "service": one.service, "state": one.state, "running": one.running}
            for one in self.instances
        ]
        return {"instances": states, "node": self.node, "moved_bytes": self.moved_bytes}


def drain(
    name: Annotated[str, typer.Argument(help="An instance or a node; `moonpool status` has them.")],
    undo: Annotated[bool, typer.Option("--undo", help="Take it back to work.")] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Wait so long for what runs to end.")
    ] = 120.0,
    yes: YesOption = False,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take an instance, or a node with its instances, out of work; waits until nothing runs there.

    It gets no new requests and finishes those it has. A node then hands blocks that are hot, or
    nowhere else, to other nodes, and can still be read from. The processes stay, so that they can
    be stopped in peace, or taken back with --undo. Exit code 0 when nothing runs there any more.

    Examples:

      moonpool drain decode-2

      moonpool drain node-1 --timeout-s 600 --yes

      moonpool drain node-1 --undo --json --yes
    """
    question = f"Take {name} back to work?" if undo else f"Take {name} out of work?"
    confirm(question, is_yes=yes, as_json=as_json)
    done = on_bus("drain", nats, lambda bus: _drain(bus, name, timeout_s, is_over=undo))
    if as_json:
        print_json({"ok": True, **done.as_json()})
        return
    for one in done.instances:
        console.print(f"{one.id} is {one.state} as {one.service} and runs {one.running} requests")
    if done.node is not None:
        word = "back at work" if undo else f"out of work; {done.moved_bytes} bytes went to others"
        console.print(f"node {done.node} is {word}")


async def _drain(bus: Bus, name: str, timeout_s: float, *, is_over: bool) -> Drained:
    deadline_s = monotonic_s() + timeout_s
    state = await need_state(bus)
    done = Drained(name)
    is_node = any(node.id == name for node in state.nodes)
    meant = [one for one in state.instances if (one.node if is_node else one.id) == name]
    if not meant and not is_node:
        raise CommandError(_unknown(state, name), hint=LOOK_HINT)
    if is_node and is_over:  # the pool first: instances may need it at once
        await _ask_node(bus, name, done, deadline_s, is_over=True)
    await asyncio.gather(*(_ask_instance(bus, one, is_over=is_over) for one in meant))
    done.instances = await _wait(bus, meant, deadline_s, timeout_s, is_over=is_over)
    if is_node and not is_over:
        await _ask_node(bus, name, done, deadline_s, is_over=False)
    return done


async def _ask_instance(bus: Bus, one: InstanceReport, *, is_over: bool) -> None:
    subject = subjects.instance(one.service, one.id, "drain")
    await bus.request(subject, Drain(is_over=is_over), DrainReply, timeout_s=ASK_TIMEOUT_S)


async def _ask_node(
    bus: Bus, name: str, done: Drained, deadline_s: float, *, is_over: bool
) -> None:
    left_s = min(max(deadline_s - monotonic_s(), 0.001), 600.0)
    request = NodeDrain(is_over=is_over, remaining_ms=max(1, int(left_s * 1000)))
    subject = subjects.transfer(name, "drain")
    reply = await bus.request(subject, request, NodeDrainReply, timeout_s=left_s + ASK_TIMEOUT_S)
    done.node, done.moved_bytes = name, reply.moved_bytes


async def _wait(
    bus: Bus, meant: list[InstanceReport], deadline_s: float, timeout_s: float, *, is_over: bool
) -> list[InstanceReport]:
    """Their reports once they are at rest, or ready again; one that is gone is at rest."""
    wanted = {(one.service, one.id) for one in meant}
    with console.status("waiting for what runs"):
        while True:
            state = await need_state(bus)
            found = [one for one in state.instances if (one.service, one.id) in wanted]
            if all(_has_settled(one, is_over=is_over) for one in found):
                return found
            if monotonic_s() > deadline_s:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
    busy = ", ".join(one.id for one in found if not _has_settled(one, is_over=is_over))
    if is_over:
        raise CommandError(f"not ready after {timeout_s:g} s: {busy}", hint=LOOK_HINT)
    raise CommandError(
        f"requests still run after {timeout_s:g} s on {busy}; nothing new comes there",
        hint="ask again to wait longer, or --undo",
    )


def _has_settled(one: InstanceReport, *, is_over: bool) -> bool:
    if is_over:
        return one.state == "ready"
    return one.state == "draining" and not (one.running or one.queued_requests or one.preempted)


def _unknown(state: StateReply, name: str) -> str:
    known = sorted({one.id for one in state.instances} | {one.id for one in state.nodes})
    if any(one.id == name for one in state.gateways):
        return f"{name} is a gateway: it drains when it is told to stop (SIGTERM)"
    return f"there is no instance or node {name!r} (known: {', '.join(known) or 'none'})"
