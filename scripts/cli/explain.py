"""`moonpool explain`: where a request would run now, and why there."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scripts.cli.asking import JsonOption
from scripts.cli.gateway_client import ApiKeyOption, UrlOption, open_gateway
from scripts.cli.output import CommandError, print_json
from scripts.cli.prompt_chain import ChatOption
from shared.scheduling.slo import shown, shown_apart

STDIN = "-"
TABLE_WIDTH = 120
CHOSEN = "→"
UNKNOWN = "-"
COST_UNITS = {"dynamo_cost": "blocks"}
"""Of policies that do not count in seconds."""
CLUSTER_CODES = ("no_instance", "overloaded")
"""Refusals that are not about the request."""
PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="Text of the prompt; - reads it from stdin."),
]


def explain(
    prompt: PromptArgument = None,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The prompt is in this file instead."),
    ] = None,
    chat: ChatOption = False,
    model: Annotated[str | None, typer.Option(help="Else the first one served.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    policy: Annotated[
        str | None, typer.Option(help="By another policy than the cluster's; admin key.")
    ] = None,
    ttft_slo_ms: Annotated[
        float | None, typer.Option(min=0.001, help="The request's target for token 0.")
    ] = None,
    tbt_slo_ms: Annotated[
        float | None, typer.Option(min=0.001, help="Its target between tokens.")
    ] = None,
    salt: Annotated[str | None, typer.Option(help="`cache_salt` of the request.")] = None,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a request would run now: every candidate, what it would take, why it lost.

    Nothing runs and nothing is promised. Exit code 1 when the request would be refused.

    Examples:

      moonpool explain "The quick brown fox"

      moonpool explain --file question.txt --chat --max-tokens 512

      cat question.txt | moonpool explain - --ttft-slo-ms 500 --json

      moonpool explain --file question.txt --policy least_loaded --url http://my-host:8000
    """
    text = _text_of(prompt, file)
    asked: dict[str, Any] = {"max_tokens": max_tokens}
    asked |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    options = {
        "policy": policy,
        "ttft_slo_ms": ttft_slo_ms,
        "tbt_slo_ms": tbt_slo_ms,
        "cache_salt": salt,
    }
    asked |= {name: value for name, value in options.items() if value is not None}
    with open_gateway(url, api_key) as client:
        asked["model"] = model or client.first_model()
        told = client.post("/v1/explain", asked, "candidates")
    is_refused = told["refusal"] is not None
    if as_json:
        print_json({"ok": not is_refused, **told})
    else:
        out = Console(highlight=False)
        if not out.is_terminal:
            out = Console(highlight=False, width=TABLE_WIDTH)
        out.print(refusal_of(told) if is_refused else explanation_of(told))
    raise typer.Exit(1 if is_refused else 0)


def _text_of(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise CommandError(
            "which prompt?", hint="give its text, - for stdin or --file, one of them"
        )
    try:
        if file is not None:
            text = file.read_bytes().decode()
        elif prompt == STDIN:
            if sys.stdin is None:  # closed by whoever started us
                raise CommandError("stdin is closed", hint="pipe the prompt in, or name a --file")
            text = sys.stdin.buffer.read().decode()
        else:
            assert prompt is not None, "one of them is given"
            prompt.encode()
            text = prompt
    except OSError as error:
        raise CommandError(f"--file {file}: {error.strerror}", hint="name another file") from None
    except UnicodeError:
        raise CommandError("the prompt is not UTF-8", hint="convert it, e.g. with iconv") from None
    if not text:
        raise CommandError("the prompt is empty", hint="give a text of a token at least")
    return text


def explanation_of(told: Mapping[str, Any]) -> RenderableType:
    """The candidates of one explanation, the winner first."""
    head = Text(f"{_request_of(told)}, policy {told['policy']}")
    decode = told["decode"]
    winner = f"{CHOSEN} would run here"
    winner += ": the answer ends with the prefill" if decode is None else f", decode on {decode}"
    rest = [f"{number} {reason}" for reason, number in _others(told)]
    lines: list[RenderableType] = [
        head,
        _table_of(told["candidates"], str(told["policy"])),
        Text(winner),
    ]
    if rest:
        lines.append(Text(f"not candidates: {', '.join(rest)}"))
    return Group(*lines)


def refusal_of(told: Mapping[str, Any]) -> RenderableType:
    """Why the request would be refused, and by how much it misses its targets."""
    lines = [Text(_request_of(told)), Text(f"would be refused: {told['refusal']['message']}")]
    targets = told["targets"] or {}
    for name in ("ttft", "tbt"):
        allowed = targets.get(f"allowed_{name}_ms")
        predicted = targets.get(f"predicted_{name}_ms")
        if allowed is not None or predicted is not None:
            lines.append(Text(f"  {name.upper():4}  {_beside(predicted, allowed)}"))
    lines += [Text(f"  {number} {reason}") for reason, number in _others(told)]
    if targets:
        lines.append(Text("try: allow more time, or ask when less runs"))
    elif told["refusal"]["code"] in CLUSTER_CODES:
        lines.append(Text("try: `moonpool status` shows what runs"))
    return Group(*lines)


def _request_of(told: Mapping[str, Any]) -> str:
    return (
        f"{told['model']}: prompt of {told['prompt_tokens']} tokens "
        f"({told['prompt_blocks']} full blocks), answer of {told['max_tokens']} at most"
    )


def _others(told: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Instances that are no candidates, by reason."""
    return [(reason, number) for reason, number in told["counts"].items() if reason != "not_best"]


def _table_of(candidates: Sequence[Mapping[str, Any]], policy: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    unit = COST_UNITS.get(policy, "s")
    table.add_column("")
    table.add_column("prefill", no_wrap=True)
    headings = (
        *("cached\nlocal\ntokens", "cached\nremote\ntokens", "queue\ns", "fetch\ns", "compute\ns"),
        *("TTFT\ns", "TBT\nms", f"cost\n{unit}"),
    )
    for heading in headings:
        table.add_column(heading, justify="right", min_width=6)
    table.add_column("why it lost")
    for one in candidates:
        predicted, is_chosen = one["predicted"], one["is_chosen"]
        tbt_s = predicted["tbt_s"]
        table.add_row(
            CHOSEN if is_chosen else "",
            one["prefill"],
            str(one["local_tokens"]),
            str(one["remote_tokens"]),
            *(_number(predicted[f"{name}_s"]) for name in ("queue", "load", "compute", "ttft")),
            _number(None if tbt_s is None else tbt_s * 1_000, places=1),
            _number(one["cost"]),
            Text(one["reason"]),
            style="bold" if is_chosen else None,
        )
    return table


def _number(value: float | None, *, places: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:.{places}f}"


def _beside(predicted_ms: float | None, allowed_ms: float | None) -> str:
    if predicted_ms is not None and allowed_ms is not None:
        predicted, allowed = shown_apart(predicted_ms / 1e3, allowed_ms / 1e3)
        return f"predicted {predicted}, allowed {allowed}"
    predicted = UNKNOWN if predicted_ms is None else shown(predicted_ms / 1e3)
    limit = "no target" if allowed_ms is None else f"allowed {shown(allowed_ms / 1e3)}"
    return f"predicted {predicted}, {limit}"
