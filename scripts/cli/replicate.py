"""`moonpool replicate`: a prompt on so many nodes."""

from typing import Annotated

import typer
from rich.console import Console

from scripts.cli.asking import JsonOption, NatsOption, YesOption, confirm, on_bus
from scripts.cli.output import print_json
from scripts.cli.prompt_chain import (
    ChatOption,
    GivenPrompt,
    KeysOption,
    ModelOption,
    SaltOption,
    TenantOption,
    TextArgument,
    TokensOption,
    chain_of,
)
from shared.messages import subjects
from shared.messages.conductor import ChangeReplicaReply, ChangeReplicaRequest
from shared.runtime.bus import Bus

ANSWER_S = 5.0


def replicate(
    copies: Annotated[int, typer.Option(min=0, max=1_000, help="Nodes that shall have it.")],
    text: TextArgument = None,
    tokens: TokensOption = None,
    keys: KeysOption = None,
    chat: ChatOption = False,
    model: ModelOption = None,
    salt: SaltOption = None,
    tenant: TenantOption = "",
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="For the copying.")] = 30.0,
    yes: YesOption = False,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the blocks of a prompt on so many nodes: copied to more, or dropped from some.

    The conductor chooses the nodes. Exit code 0 when as many as wanted have it.

    Examples:

      moonpool replicate --copies 3 --chat "$(cat system-prompt.txt)" --yes

      moonpool replicate --copies 1 --keys 0f3a8c1e9b7d4e2f6a5b3c1d0e9f8a7b --json --yes
    """
    given = GivenPrompt(text, tokens, keys, chat, model, salt, tenant)
    confirm(f"Have the prompt on {copies} nodes?", is_yes=yes, as_json=as_json)
    reply = on_bus("replicate", nats, lambda bus: _replicate(bus, given, copies, timeout_s))
    is_good = len(reply.nodes) == copies
    if as_json:
        print_json({"ok": is_good, **reply.model_dump(mode="json", exclude={"v"})})
    else:
        _print(reply)
    raise typer.Exit(0 if is_good else 1)


async def _replicate(
    bus: Bus, given: GivenPrompt, copies: int, timeout_s: float
) -> ChangeReplicaReply:
    chain = (await chain_of(bus, given)).need_blocks()
    request = ChangeReplicaRequest(
        model=chain.model,
        chain=chain.keys,
        num_replicas=copies,
        remaining_ms=int(timeout_s * 1000),
    )
    return await bus.request(
        subjects.CONDUCTOR_CHANGE_REPLICA,
        request,
        ChangeReplicaReply,
        timeout_s=timeout_s + ANSWER_S,
    )


def _print(reply: ChangeReplicaReply) -> None:
    out = Console(highlight=False)
    out.print(f"on {len(reply.nodes)} nodes: {', '.join(reply.nodes) or 'none'}", markup=False)
    for what, nodes in (("copied to", reply.added), ("dropped from", reply.dropped)):
        if nodes:
            out.print(f"{what} {', '.join(nodes)}", markup=False)
    for node, problem in reply.failed.items():
        out.print(f"{node} failed: {problem}", markup=False, soft_wrap=True)
