"""`moonpool pin`: blocks that stay in DRAM, whoever uses them."""

from typing import Annotated

import typer

from scripts.cli.asking import JsonOption, NatsOption, YesOption, confirm, on_bus
from scripts.cli.on_nodes import NodeAnswer, NodesOption, ask_nodes, holders_of, named_nodes, show
from scripts.cli.output import CommandError
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
from shared.messages.transfer import PinReply, PinRequest
from shared.runtime.bus import Bus

MAX_TTL_S = 7 * 86_400
PIN_TIMEOUT_S = 15.0
"""A pin may have to bring blocks from the SSD first."""
COLUMNS = {
    "blocks pinned": "num_blocks",
    "pin id": "pin_id",
    "by all pins": "pinned_blocks",
    "at most": "max_pinned_blocks",
}


def pin(
    text: TextArgument = None,
    tokens: TokensOption = None,
    keys: KeysOption = None,
    chat: ChatOption = False,
    model: ModelOption = None,
    salt: SaltOption = None,
    tenant: TenantOption = "",
    node: NodesOption = None,
    ttl_s: Annotated[
        float, typer.Option(min=0.001, max=MAX_TTL_S, help="How long, at most a week.")
    ] = 600.0,
    end: Annotated[
        str | None, typer.Option(metavar="PIN_ID", help="End this pin of --node instead.")
    ] = None,
    yes: YesOption = False,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the blocks of a prompt in DRAM for a time: on the nodes that hold it, or on --node.

    What is on a node's SSD comes into its pool first. MOONPOOL_PIN_SHARE bounds what can be pinned.

    Examples:

      moonpool pin "$(cat system-prompt.txt)" --chat --ttl-s 86400 --yes

      moonpool pin --keys 0f3a8c1e9b7d4e2f6a5b3c1d0e9f8a7b --node node-1

      moonpool pin --end 5d41402abc4b2a76 --node node-1 --json --yes
    """
    if end is not None:
        if not node or (text, tokens, keys) != (None, None, None):
            raise CommandError("--end goes with --node alone", hint="--end PIN_ID --node NODE")
        confirm(f"End pin {end} on {', '.join(node)}?", is_yes=yes, as_json=as_json)
        ended = on_bus("pin", nats, lambda bus: _end(bus, node, end))
        show(ended, COLUMNS, as_json=as_json)
    given = GivenPrompt(text, tokens, keys, chat, model, salt, tenant)
    where = ", ".join(node) if node else "every node that holds it"
    confirm(f"Pin the prompt on {where} for {ttl_s:g} s?", is_yes=yes, as_json=as_json)
    answers = on_bus("pin", nats, lambda bus: _pin(bus, given, node, ttl_s))
    pinned = [one for one in answers if one.reply is not None and one.reply.num_blocks]
    show(answers, COLUMNS, as_json=as_json, is_good=bool(pinned))


async def _pin(
    bus: Bus, given: GivenPrompt, nodes: list[str] | None, ttl_s: float
) -> list[NodeAnswer[PinReply]]:
    chain = await chain_of(bus, given)
    names = await holders_of(bus, chain.need_blocks(), nodes)
    request = PinRequest(keys=chain.keys, ttl_ms=max(1, int(ttl_s * 1000)))
    return await ask_nodes(bus, names, "pin", request, PinReply, PIN_TIMEOUT_S)


async def _end(bus: Bus, nodes: list[str], pin_id: str) -> list[NodeAnswer[PinReply]]:
    names = [one.id for one in await named_nodes(bus, nodes)]
    request = PinRequest(pin_id=pin_id, ttl_ms=0)
    return await ask_nodes(bus, names, "pin", request, PinReply, PIN_TIMEOUT_S)
