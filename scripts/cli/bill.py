"""`moonpool bill`: what an answered request was predicted to take, and what it took."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from scripts.cli.asking import JsonOption
from scripts.cli.gateway_client import (
    ApiKeyOption,
    GatewayClient,
    GatewayRefused,
    UrlOption,
    open_gateway,
)
from scripts.cli.output import CommandError, print_json
from scripts.demo.table import STAGES, bills_of

TABLE_WIDTH = 100
PLACES = 3
TO_TOKEN_0 = (*STAGES[:-1], ("overhead_s", "other"), STAGES[-1])
AFTER_TOKEN_0 = (("handoff_s", "hand-over"), ("tbt_s", "TBT"))
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
"""An answer's `id` is one of these and the request's."""
LONGEST_ID = 300
"""A client's id has 256 characters at most; the gateway's has that, a prefix and a suffix."""
NO_BILL_HINT = (
    "`moonpool top` shows the last requests; an id is the answer's `id`, its `moonpool.request_id` "
    "or its x-request-id; of several gateways ask the one that served it, with --url"
)


def bill(
    request_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Of the request: `id` or x-request-id of its answer."),
    ],
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where an answered request ran, what was reused, and its times: predicted and real.

    A gateway keeps the bills of its last 1,000 requests.

    Examples:

      moonpool bill chatcmpl-req-3f9c0a7d5b1e8a2c4d6f

      moonpool bill my-own-id --json | jq .real.ttft_s

      moonpool bill my-own-id --url http://my-host:8000
    """
    with open_gateway(url, api_key) as client:
        found = _find(client, request_id)
    if as_json:
        print_json(found)
        return
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=TABLE_WIDTH)
    out.print(view_of(found))


def _find(client: GatewayClient, given: str) -> dict[str, Any]:
    """By the id as it is given, else by what follows the prefix of an answer's."""
    bare = [given.removeprefix(one) for one in ANSWER_PREFIXES if given.startswith(one)]
    problem = "no id is given"
    if len(given) > LONGEST_ID:
        raise CommandError(f"no id has {len(given)} characters", hint=NO_BILL_HINT)
    for request_id in filter(None, (given, *bare)):
        try:
            return client.get(f"/v1/bills/{_quoted(request_id)}", "reuse")
        except GatewayRefused as refused:
            if refused.status != 404:
                raise
            problem = refused.message
    raise CommandError(problem, hint=NO_BILL_HINT)


def _quoted(request_id: str) -> str:
    """Dots too: an id of dots alone is no way up."""
    return quote(request_id, safe="", errors="replace").replace(".", "%2E")


def view_of(found: Mapping[str, Any]) -> RenderableType:
    """Where it ran, then the demo's table of its times."""
    real, decode = found["real"], found["decode"]
    parts: list[RenderableType] = [*map(Text, _facts(found)), Text()]
    times = {"": {"predicted": found["predicted"], "real": real}}
    parts.append(bills_of(times, stages=TO_TOKEN_0, places=PLACES))
    if decode is not None:
        if found["output_tokens"] < 2:  # there is nothing between tokens
            real = {**real, "tbt_s": None}
        times = {"": {"predicted": found["predicted"], "real": real}}
        title = "After token 0, in seconds"
        parts.append(bills_of(times, title=title, stages=AFTER_TOKEN_0, places=PLACES))
    return Group(*parts)


def _facts(found: Mapping[str, Any]) -> list[str]:
    prefill, decode, reuse = found["prefill"], found["decode"], found["reuse"]
    where = f"prefill {prefill['id']} on {prefill['node']}"
    if decode is not None:
        where += f", decode {decode['id']} on {decode['node']}"
    if found["attempts"] > 1:
        where += f", {found['attempts']} attempts"
    prompt, local, remote = (reuse[f"{name}_tokens"] for name in ("prompt", "local", "remote"))
    computed = prompt if reuse["scored_tokens"] else prompt - local - remote
    tokens = f"prompt of {prompt} tokens: {local} cached local"
    if reuse["disk_tokens"]:
        tokens += f" ({reuse['disk_tokens']} from SSD)"
    tokens += f", {remote} remote, {computed} computed"
    moved = "moved: nothing"
    if reuse["fetched_bytes"] or reuse["streamed_bytes"]:
        moved = (
            f"moved: {reuse['fetched_bytes'] / 1e6:.1f} MB fetched, "
            f"{reuse['streamed_bytes'] / 1e6:.1f} MB to decode, over {reuse['transport']}"
        )
    answer = f"answer of {found['output_tokens']} tokens"
    if found["output_tokens"] > 1:
        answer += f", {found['decode_s']:.3f} s after the first"
    lines = [f"{found['request_id']}, {found['model']}", where, tokens, moved, answer]
    if found["real"]["preemptions"]:
        lines.append(
            f"preempted {found['real']['preemptions']} times, "
            f"{found['real']['preempted_s']:.3f} s in all"
        )
    return lines
