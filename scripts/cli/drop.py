"""`moonpool drop`: nodes forget a prompt."""

from typing import Annotated

import typer

from scripts.cli.asking import JsonOption, NatsOption, YesOption, confirm, on_bus
from scripts.cli.on_nodes import NodeAnswer, NodesOption, ask_nodes, holders_of, show
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
from shared.kv.block_keys import key_at
from shared.messages.transfer import DropReply, DropRequest
from shared.runtime.bus import Bus

DROP_TIMEOUT_S = 5.0
COLUMNS = {"blocks dropped": "num_dram_blocks", "of the SSD": "num_disk_blocks"}


def drop(
    text: TextArgument = None,
    tokens: TokensOption = None,
    keys: KeysOption = None,
    chat: ChatOption = False,
    model: ModelOption = None,
    salt: SaltOption = None,
    tenant: TenantOption = "",
    keep: Annotated[
        int,
        typer.Option(min=0, help="Keep so many of its leading blocks (such as a system prompt)."),
    ] = 0,
    node: NodesOption = None,
    yes: YesOption = False,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget the cached blocks of a prompt and of all that begins with them, in DRAM and on SSD.

    On the nodes that hold it, or on --node. Requests that read it now finish undisturbed; the next
    ones compute it again.

    Examples:

      moonpool drop "The quick brown fox ..." --yes

      moonpool drop --chat "$(cat question.txt)" --keep 4 --node node-1

      moonpool drop --tokens "$(cat ids.txt)" --tenant acme --salt s1 --json --yes
    """
    given = GivenPrompt(text, tokens, keys, chat, model, salt, tenant)
    where = ", ".join(node) if node else "every node that holds it"
    confirm(
        f"Forget the prompt from block {keep + 1} on, and every prompt that begins so, on {where}?",
        is_yes=yes,
        as_json=as_json,
    )
    answers = on_bus("drop", nats, lambda bus: _drop(bus, given, node, keep))
    show(answers, COLUMNS, as_json=as_json)


async def _drop(
    bus: Bus, given: GivenPrompt, nodes: list[str] | None, keep: int
) -> list[NodeAnswer[DropReply]]:
    chain = (await chain_of(bus, given)).need_blocks()
    if keep >= chain.num_blocks:
        raise CommandError(
            f"--keep {keep}: the prompt has {chain.num_blocks} full blocks", hint="keep fewer"
        )
    names = await holders_of(bus, chain, nodes)
    request = DropRequest(key=key_at(chain.keys, keep))
    return await ask_nodes(bus, names, "drop", request, DropReply, DROP_TIMEOUT_S)
