"""One frame of `moonpool top`: an overview as text that fits a width and a height."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scripts.top.words import ago, num_bytes, percent, plain, seconds
from shared.overview.overview import Overview

Row = dict[str, Any]
ORDERS: dict[str, Callable[[Row], float]] = {
    "newest": lambda row: -row["ended_s"],
    "ttft": lambda row: -row["real"]["ttft_s"] if "real" in row else 0.0,
    "longest": lambda row: -row["took_s"],
    "prompt": lambda row: -row["prompt_tokens"],
}
LEAST_REQUESTS = 3
MAX_PRINTED = 20
"""Requests of a frame without a height."""
REQUEST_COLUMNS = {"REQUEST": None, "WHEN": 4, "PATH": 19, "CACHED": 9, "QUEUE": 5, "LOAD": 5,
                   "COMP": 5, "TTFT": 6, "PRED": 6}  # fmt: skip
"""With their widths."""
GOOD_STATES = ("ready", "answers")


@dataclass(slots=True)
class Look:
    """How the user wants it."""

    order: str = "newest"
    is_paused: bool = False

    def next_order(self) -> None:
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + 1) % len(names)]


def draw(
    overview: Overview, look: Look, now_s: float, width: int, height: int | None
) -> RenderableType:
    """All of it; with a height, lists are cut so that everything has a place."""
    sections = overview.sections(now_s)
    head = _head(sections)
    nodes, instances = sections["nodes"], sections["instances"]
    reasons = sections["summary"]["reasons"]
    most = 1_000 if height is None else _share(height, len(head), len(reasons))
    parts: list[RenderableType] = [
        *head,
        _cut(_nodes_table(nodes[:most]), len(nodes) - most, "nodes"),
        _cut(_instances_table(instances[:most]), len(instances) - most, "instances"),
    ]
    used = len(head) + sum(2 + min(len(one), most + 1) for one in (nodes, instances))
    room = MAX_PRINTED if height is None else max(LEAST_REQUESTS, height - used - 4)
    parts.append(_requests_table(overview.rows(), look, now_s, room))
    parts += [_reason(one, now_s) for one in reasons[: 2 if height is None else 1]]
    if height is not None:
        parts.append(_keys(look))
    return Group(*parts)


def _share(height: int, num_head: int, num_reasons: int) -> int:
    """Lines for nodes and for instances each, so that some requests are seen."""
    left = height - num_head - 6 - min(1, num_reasons) - LEAST_REQUESTS - 2
    return max(1, left // 2)


def _head(sections: dict[str, Any]) -> list[Text]:
    cluster, summary = sections["cluster"], sections["summary"]
    problems = cluster["problems"]
    models = ", ".join(model["name"] for model in cluster["models"]) or "no model"
    first = Text(no_wrap=True, overflow="ellipsis")
    first.append("moonpool", "bold")
    first.append(f"  {plain(models)}  {cluster['policy']}  ")
    first.append("healthy" if not problems else _count(problems),
                 "bold green" if not problems else "bold red")  # fmt: skip
    lines = [first]
    lines += [
        Text(f"! {plain(one)}", "red", no_wrap=True, overflow="ellipsis") for one in problems[:3]
    ]
    endings, tokens = summary["endings"], summary["tokens"]
    total = sum(tokens.values())
    queued = sum(one["queued_requests"] for one in sections["instances"])
    lines.append(
        _line(
            f"{summary['asked']} requests in {summary['span_s'] / 60:.0f} min",
            f"{cluster['in_flight']} in flight",
            f"{queued} queued",
            f"{endings['refused']} refused",
            f"{endings['failed']} failed",
        )
    )
    lines.append(
        _line(
            f"TTFT p50 {seconds(summary['ttft_s']['p50'])} p90 {seconds(summary['ttft_s']['p90'])}",
            f"TBT p50 {seconds(summary['tbt_s']['p50'])} p90 {seconds(summary['tbt_s']['p90'])}",
            f"capacity {percent(summary['effective_capacity'])}",
        )
    )
    shares = {name: percent(count / total if total else None) for name, count in tokens.items()}
    lines.append(
        _line(
            f"prompt tokens: {shares['none']} computed",
            f"{shares['local']} local",
            f"{shares['remote']} remote",
            f"{shares['disk']} SSD",
        )
    )
    return lines


def _count(problems: list[str]) -> str:
    return f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"


def _line(*parts: str) -> Text:
    return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold reverse", expand=True)
    for name in columns:
        side: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")
    return table


def _nodes_table(nodes: list[Row]) -> Table:
    table = _table("NODE", "STATE", "DRAM FREE", "SSD", "FETCH/S", "STREAM/S", "EVICTED",
                   right=("DRAM FREE", "FETCH/S", "STREAM/S", "EVICTED"))  # fmt: skip
    for node in nodes:
        dram, ssd, rates = node["dram"], node["ssd"], node["rates"]
        is_low = dram["free"] < dram["low"]
        table.add_row(
            Text(plain(node["id"])),
            _state(node["state"]),
            f"{dram['free']}/{dram['total']}{' low' if is_low else ''}",
            ssd["state"] if ssd["state"] == "none" else f"{ssd['used']}/{ssd['total']}",
            num_bytes(rates["bytes_fetched_total"]),
            num_bytes(rates["bytes_streamed_total"]),
            str(node["evictions_total"]),
        )
    return table


def _instances_table(instances: list[Row]) -> Table:
    table = _table("INSTANCE", "ROLE", "NODE", "STATE", "QUEUED", "RUN", "LOAD",
                   right=("QUEUED", "RUN", "LOAD"))  # fmt: skip
    for one in instances:
        used = one["capacity_tokens"] - one["free_tokens"]
        is_prefill = one["role"] == "prefill"
        load = f"{one['queued_tokens']} to do" if is_prefill else f"{used}/{one['capacity_tokens']}"
        table.add_row(
            Text(plain(one["id"])), one["role"], Text(plain(one["node"])), _state(one["state"]),
            str(one["queued_requests"]), str(one["running"]), load,
        )  # fmt: skip
    return table


def _requests_table(rows: list[Row], look: Look, now_s: float, room: int) -> RenderableType:
    table = _table()
    for name, width in REQUEST_COLUMNS.items():
        side: Literal["left", "right"] = "left" if name in ("REQUEST", "PATH") else "right"
        # What is left is the id's.
        sizes: dict[str, Any] = {"ratio": 1} if width is None else {"width": width}
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", **sizes)
    for row in sorted(rows, key=ORDERS[look.order])[:room]:
        when = ago(now_s - row["ended_s"])
        if "real" not in row:
            table.add_row(
                Text(plain(row["id"])), when, Text(f"{row['ending']} {row['code'] or ''}", "red")
            )
            continue
        real, tokens = row["real"], row["tokens"]
        cached = sum(tokens.values()) - tokens["none"]
        table.add_row(
            Text(plain(row["id"])),
            when,
            Text(plain("→".join(one for one in (row["prefill"], row["decode"]) if one))),
            f"{cached}/{row['prompt_tokens']}",
            seconds(real["queue_s"]),
            seconds(real["load_s"]),
            seconds(real["compute_s"]),
            seconds(real["ttft_s"]),
            seconds(row["predicted"]["ttft_s"]),
        )
    if not rows:
        return Group(table, Text("no request yet: try `moonpool chat`", "dim"))
    return table


def _cut(table: Table, num_more: int, what: str) -> RenderableType:
    if num_more <= 0:
        return table
    return Group(table, Text(f"… {num_more} more {what}: `moonpool status`", "dim"))


def _reason(reason: Row, now_s: float) -> Text:
    text = (
        f"{reason['count']} {reason['ending']}: {reason['code']}, last "
        f"{ago(now_s - reason['last_s'])} ago: {reason['message']}"
    )
    return Text(plain(text), "red", no_wrap=True, overflow="ellipsis")


def _keys(look: Look) -> Text:
    paused = "  PAUSED" if look.is_paused else ""
    return Text(f"q end  s sort ({look.order})  p pause{paused}", "dim", no_wrap=True)


def _state(state: str) -> Text:
    return Text(state, "green" if state in GOOD_STATES else "bold red")
