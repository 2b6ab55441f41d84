"""An operator's question to several nodes: which ones, what each said, and a table of it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from scripts.cli.asking import LOOK_HINT
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.prompt_chain import PromptChain
from scripts.index.asking import IndexAsker
from scripts.launcher.readiness import ask_conductor
from shared.messages import subjects
from shared.messages.conductor import StateReply
from shared.messages.envelope import Message
from shared.messages.reports import NodeReport
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

R = TypeVar("R", bound=Message)
NodesOption = Annotated[
    list[str] | None, typer.Option("--node", help="Only this node; may be given several times.")
]


@dataclass(frozen=True, slots=True)
class NodeAnswer(Generic[R]):
    """What one node answered; without a reply, why not."""

    node: str
    reply: R | None
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        said = {"node": self.node, "ok": self.reply is not None}
        if self.reply is None:
            return said | {"problem": self.problem}
        return said | self.reply.model_dump(mode="json", exclude={"v"})


async def need_state(bus: Bus) -> StateReply:
    state = await ask_conductor(bus)
    if state is None:
        raise CommandError("no conductor answers", hint=LOOK_HINT)
    return state


async def named_nodes(bus: Bus, names: Sequence[str] | None) -> list[NodeReport]:
    """The nodes of these names, or all. Raises CommandError for one that is not there."""
    known = {node.id: node for node in (await need_state(bus)).nodes}
    if names:
        missing = [name for name in names if name not in known]
        if missing:
            there = ", ".join(sorted(known)) or "none"
            raise CommandError(f"there is no node {missing[0]!r} (known: {there})", hint=LOOK_HINT)
        return [known[name] for name in dict.fromkeys(names)]
    if not known:
        raise CommandError("there is no node", hint=LOOK_HINT)
    return [known[name] for name in sorted(known)]


async def holders_of(bus: Bus, chain: PromptChain, names: Sequence[str] | None) -> list[str]:
    """The nodes of these names, or those that the index says hold the start of the chain."""
    if names:
        return [node.id for node in await named_nodes(bus, names)]
    match = await IndexAsker(bus).match(chain.root, chain.need_blocks().keys)
    if not match.nodes:
        raise CommandError(
            f"no node holds any of the prompt's {chain.num_blocks} blocks",
            hint="`moonpool index lookup` with the same options looks again; blocks of a request "
            "with a salt or a tenant need --salt or --tenant",
        )
    return [one.node.id for one in match.nodes]


async def ask_nodes(
    bus: Bus,
    nodes: Sequence[str],
    operation: str,
    request: Message,
    reply_type: type[R],
    timeout_s: float,
) -> list[NodeAnswer[R]]:
    """All of them at once; one that refuses does not stop the others."""

    async def ask(node: str) -> NodeAnswer[R]:
        subject = subjects.transfer(node, operation)
        try:
            reply = await bus.request(subject, request, reply_type, timeout_s=timeout_s)
        except ServiceError as error:
            return NodeAnswer(node, None, error.message)
        return NodeAnswer(node, reply)

    return list(await asyncio.gather(*(ask(node) for node in nodes)))


def show(
    answers: Sequence[NodeAnswer[Any]],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    is_good: bool = True,
    **more: Any,
) -> None:
    """Print what nodes said and end with the exit code; `columns`: fields of replies by heading."""
    is_good = is_good and all(answer.reply is not None for answer in answers)
    if as_json:
        print_json({"ok": is_good, **more, "nodes": [answer.as_json() for answer in answers]})
    else:
        table = Table("node", *columns)
        for answer in answers:
            if answer.reply is not None:
                table.add_row(
                    answer.node, *(str(getattr(answer.reply, name)) for name in columns.values())
                )
        if table.row_count:
            Console(highlight=False).print(table)
        for answer in answers:
            if answer.reply is None:
                console.print(f"{answer.node}: {answer.problem}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if is_good else 1)
