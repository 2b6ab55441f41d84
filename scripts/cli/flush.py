"""`moonpool flush`: empty pools."""

from typing import Annotated

import typer

from scripts.cli.asking import JsonOption, NatsOption, YesOption, confirm, on_bus
from scripts.cli.on_nodes import NodeAnswer, ask_nodes, named_nodes, show
from scripts.cli.output import CommandError
from shared.messages.transfer import FlushReply, FlushRequest
from shared.runtime.bus import Bus

FLUSH_TIMEOUT_S = 60.0
COLUMNS = {
    "blocks forgotten": "num_dram_blocks",
    "of the SSD": "num_disk_blocks",
    "blocks kept": "kept_dram_blocks",
    "on the SSD": "kept_disk_blocks",
}


def flush(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="Nodes to empty.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every node.")] = False,
    ssd: Annotated[bool, typer.Option("--ssd", help="The SSD tier too, for good.")] = False,
    yes: YesOption = False,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget every cached block that nobody holds, on some nodes or on all.

    What is leased, pinned, read or being written stays (the `kept` columns). Requests go on and
    fill the pools again.

    Examples:

      moonpool flush node-1

      moonpool flush --all --ssd --yes

      moonpool flush --all --yes --json | jq '.nodes[] | {node, num_dram_blocks}'
    """
    if is_all == bool(nodes):
        raise CommandError("which nodes?", hint="name some, or give --all")
    tiers = "pool and SSD tier" if ssd else "pool"
    where = ", ".join(nodes) if nodes else "every node"
    confirm(f"Empty the {tiers} of {where}?", is_yes=yes, as_json=as_json)
    show(on_bus("flush", nats, lambda bus: _flush(bus, nodes, ssd)), COLUMNS, as_json=as_json)


async def _flush(bus: Bus, nodes: list[str] | None, ssd: bool) -> list[NodeAnswer[FlushReply]]:
    # One that no worker has attached to has nothing.
    names = [one.id for one in await named_nodes(bus, nodes) if nodes or one.slots_total]
    request = FlushRequest(is_ssd=ssd)
    return await ask_nodes(bus, names, "flush", request, FlushReply, FLUSH_TIMEOUT_S)
