"""`moonpool index`: what the index knows, what it holds, and whether that is the truth."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from scripts.cli.asking import JsonOption, NatsOption, on_bus
from scripts.cli.output import CommandError, print_json
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
    served_model,
)
from scripts.index.asking import ChangedMeanwhile, IndexAsker, Source
from scripts.index.verify import NodeComparison
from scripts.index.verify import verify as compare
from shared.kv.ids import KEY_BYTES
from shared.kv.print_table import Prints
from shared.messages.index import IndexStats, MatchReply
from shared.runtime.bus import Bus

T = TypeVar("T")
PLACES = ("mirror", "redis", "pool")

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def index() -> None:
    """Look into the index of cached blocks: all over NATS, nothing is changed."""


@app.command()
def stats(nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Show what every cache-index knows and has seen. Exit code 0 when all have Redis.

    Examples:

      moonpool index stats

      moonpool index stats --json | jq '.indexes[].num_keys'
    """
    found = _ask(nats, _all_stats)
    ok = all(one.is_redis_up for one in found)
    if as_json:
        print_json({"ok": ok, "indexes": [one.model_dump(mode="json") for one in found]})
    else:
        Console(highlight=False).print(_stats_table(found))
    raise typer.Exit(0 if ok else 1)


async def _all_stats(asker: IndexAsker) -> list[IndexStats]:
    return [await asker.stats(one) for one in await _some_indexes(asker)]


def _stats_table(found: list[IndexStats]) -> Table:
    table = Table("", *(one.index for one in found), title="cache-index", title_justify="left")
    rows: list[tuple[str, Callable[[IndexStats], str]]] = [
        ("blocks", lambda one: f"{one.num_keys:,}"),
        ("replicas", lambda one: f"{one.num_blocks:,}"),
        ("nodes", lambda one: str(len(one.nodes))),
        ("memory", lambda one: f"{one.mirror_bytes / 1e6:.1f} MB, {one.mirror_fill:.0%} of budget"),
        ("let go for the budget", lambda one: f"{one.evicted_total:,}"),
        ("Redis", lambda one: _redis_text(one)),
        ("waiting for Redis", lambda one: f"{one.num_pending:,} fields"),
        ("matches", lambda one: f"{one.matches_total:,}"),
        ("events", lambda one: f"{one.events_total:,}"),
        ("late, repeated", lambda one: f"{one.late_events_total:,}, {one.duplicates_total:,}"),
        ("gaps, inventories taken", lambda one: f"{one.gaps_total:,}, {one.resyncs_total:,}"),
        ("prompts being computed", lambda one: f"{one.num_expected:,}"),
        ("loading took", lambda one: f"{one.load_s:.2f} s"),
    ]
    for name, text in rows:
        table.add_row(name, *(text(one) for one in found))
    return table


def _redis_text(one: IndexStats) -> str:
    if not one.is_redis_up:
        return "[red]away[/]"
    return "up" if one.redis_bytes is None else f"up, {one.redis_bytes / 1e6:.1f} MB"


@app.command()
def lookup(
    text: TextArgument = None,
    tokens: TokensOption = None,
    keys: KeysOption = None,
    key: Annotated[
        str | None, typer.Option(help="The key of one block instead, 32 hex digits.")
    ] = None,
    chat: ChatOption = False,
    model: ModelOption = None,
    salt: SaltOption = None,
    tenant: TenantOption = "",
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which nodes hold the start of a prompt, or one block. Exit code 0 when any does.

    Examples:

      moonpool index lookup "The quick brown fox ..."

      moonpool index lookup --chat "$(cat question.txt)" --json

      moonpool index lookup "The quick brown fox ..." --tenant acme --salt s1

      moonpool index lookup --key 0f3a8c1e9b7d4e2f6a5b3c1d0e9f8a7b
    """
    if (key is None) == ((text, tokens, keys) == (None, None, None)):
        raise CommandError(
            "give a prompt or --key, one of them", hint="a prompt is a text, --tokens or --keys"
        )
    if key is not None:
        packed = _key_of(key)
        shown = on_bus("index", nats, lambda bus: _lookup_key(bus, model, packed))
    else:
        given = GivenPrompt(text, tokens, keys, chat, model, salt, tenant)
        shown = on_bus("index", nats, lambda bus: _lookup_prompt(bus, given))
    ok = bool(shown["nodes"])
    if as_json:
        print_json({"ok": ok, **shown})
    else:
        _print_lookup(shown)
    raise typer.Exit(0 if ok else 1)


async def _lookup_key(bus: Bus, model: str | None, key: bytes) -> dict[str, Any]:
    served = await served_model(bus, model)
    holders = (await IndexAsker(bus).holders(served.root, key)).holders
    return {
        "key": key.hex(),
        "nodes": [{"node": one.node.id, "tier": one.tier} for one in holders],
    }


async def _lookup_prompt(bus: Bus, given: GivenPrompt) -> dict[str, Any]:
    chain = await chain_of(bus, given)
    found = await IndexAsker(bus).match(chain.root, chain.keys)
    return _match_json(found, chain.block_tokens) | {
        "tokens": chain.num_tokens,
        "blocks": chain.num_blocks,
        "keys": chain.keys.hex(),
    }


def _key_of(text: str) -> bytes:
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        packed = b""
    if len(packed) != KEY_BYTES:
        raise CommandError(f"--key {text}: a key has {2 * KEY_BYTES} hex digits")
    return packed


def _match_json(found: MatchReply, block_tokens: int) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "node": one.node.id,
                "blocks": one.num_blocks,
                "dram_blocks": one.dram_blocks,
                "tokens": one.num_blocks * block_tokens,
            }
            for one in found.nodes
        ],
        "expected": [
            {"instance": one.instance.id, "blocks": one.num_blocks, "eta_ms": one.eta_ms}
            for one in found.expected
        ],
    }


def _print_lookup(shown: dict[str, Any]) -> None:
    out = Console(highlight=False)
    if "tokens" in shown:
        out.print(f"{shown['tokens']} tokens, {shown['blocks']} full blocks")
    if not shown["nodes"]:
        out.print("no node holds it")
        return
    table = Table(*shown["nodes"][0])
    for node in shown["nodes"]:
        table.add_row(*map(str, node.values()))
    out.print(table)
    for one in shown.get("expected", ()):
        out.print(f"{one['instance']} will have {one['blocks']} blocks in {one['eta_ms']} ms")


@app.command()
def hot(
    limit: Annotated[int, typer.Option("-k", "--limit", min=1, max=512)] = 20,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the prefixes that are used most, decayed over a minute. Exit code 0.

    Lengths are 1, 2, 4, 8... blocks; a prefix that is nearly all a longer one's is left out.

    Examples:

      moonpool index hot

      moonpool index hot -k 5 --json | jq '.prefixes[] | {blocks, uses_per_s}'
    """

    async def ask(asker: IndexAsker) -> list[dict[str, Any]]:
        return [
            {
                "key": one.key.hex(),
                "blocks": one.num_blocks,
                "uses_per_s": round(one.uses_per_s, 3),
                "nodes": one.nodes,
            }
            for one in (await asker.hot(limit)).prefixes
        ]

    prefixes = _ask(nats, ask)
    if as_json:
        print_json({"ok": True, "prefixes": prefixes})
        return
    table = Table("key", "blocks", "uses/s", "nodes")
    for one in prefixes:
        table.add_row(
            one["key"], str(one["blocks"]), str(one["uses_per_s"]), ", ".join(one["nodes"])
        )
    Console(highlight=False).print(table)


@app.command()
def dump(
    node: Annotated[str, typer.Argument(help="A node; `moonpool status` names them.")],
    source: Annotated[
        str, typer.Option("--from", help=f"{', '.join(PLACES)}: where to read it.")
    ] = "mirror",
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the blocks that a node holds: the first 8 bytes of each key in hex, sorted.

    Examples:

      moonpool index dump node-1 | wc -l

      diff <(moonpool index dump node-1 --from redis) <(moonpool index dump node-1 --from pool)
    """
    if source not in PLACES:
        raise CommandError(f"--from {source}: no such place", hint=f"take {', '.join(PLACES)}")

    async def ask(asker: IndexAsker) -> Prints:
        if source == "pool":
            return (await asker.inventory(node))[1]
        place: Source = "redis" if source == "redis" else "mirror"
        return await asker.prints((await _some_indexes(asker))[0], place, node)

    blocks = sorted(int(one).to_bytes(8, "little").hex() for one in _ask(nats, ask))
    if as_json:
        print_json({"ok": True, "node": node, "from": source, "blocks": blocks})
    else:
        sys.stdout.writelines(f"{one}\n" for one in blocks)


@app.command()
def verify(nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Compare Redis, every mirror and the nodes' own inventories. Exit code 0 when all agree.

    The cluster may be at work: what differs is looked at again for some seconds before it counts.

    Examples:

      moonpool index verify

      moonpool index verify --json | jq '.nodes[] | select(.ok | not)'
    """

    async def ask(asker: IndexAsker) -> list[NodeComparison]:
        return await compare(asker, await _some_indexes(asker))

    found = _ask(nats, ask)
    ok = all(one.is_equal for one in found)
    if as_json:
        print_json({"ok": ok, "nodes": [one.as_json() for one in found]})
    else:
        _print_comparison(found)
    raise typer.Exit(0 if ok else 1)


def _print_comparison(found: list[NodeComparison]) -> None:
    out = Console(highlight=False)
    places = sorted({place for one in found for place in one.seen})
    table = Table("node", *places, "equal")
    for one in found:
        counts = [str(one.seen[place][1]) if place in one.seen else "-" for place in places]
        verdict = "[yellow]gone[/]" if one.is_gone else "[green]yes[/]"
        table.add_row(one.node, *counts, verdict if one.is_equal else "[bold red]no[/]")
    out.print(table)
    for one in found:
        for place, difference in one.examples.items():
            out.print(f"{one.node}, {place}: {difference}", soft_wrap=True)


async def _some_indexes(asker: IndexAsker) -> list[str]:
    found = await asker.indexes()
    if not found:
        raise CommandError("no cache-index answers", hint="`moonpool status` shows what runs")
    return found


def _ask(nats: str | None, ask: Callable[[IndexAsker], Awaitable[T]]) -> T:
    async def run(bus: Bus) -> T:
        try:
            return await ask(IndexAsker(bus))
        except ChangedMeanwhile as error:
            raise CommandError(f"{error} changed while it was read", hint="ask again") from None

    return on_bus("index", nats, run)
