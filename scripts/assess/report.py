"""An assessment as one HTML file, as lines, and as JSON."""

from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from scripts.assess.analysis import Assessment
from scripts.assess.machine import Machine
from scripts.charts.chart import Chart, Series, bars
from scripts.charts.files import page
from scripts.charts.svg import svg_of


def as_json(found: Assessment, machine: Machine | None) -> dict[str, Any]:
    return {**asdict(found), "machine": None if machine is None else asdict(machine)}


def lines_of(found: Assessment) -> list[str]:
    lines = [f"verdict: {found.verdict}", *(f"  {reason}" for reason in found.reasons)]
    if found.break_even_tokens is None:
        lines.append("  over this link no prefix comes faster than it is computed")
    else:
        lines.append(f"  over this link a fetch pays from {found.break_even_tokens} tokens on")
    return lines


def charts_of(found: Assessment) -> list[Chart]:
    pools = tuple((size / 1e6, hit) for size, hit in found.hit_by_pool_tokens.items())
    ideal = tuple((x, found.ideal_hit) for x, _ in pools)
    speeds = tuple((p, speed / 1e9) for p, speed in found.break_even_bytes_per_s.items())
    blocks = {f"{size}": hit for size, hit in found.hit_by_block_tokens.items()}
    return [
        bars("Mean TTFT", "seconds", {"TTFT": {way.name: way.mean_ttft_s for way in found.ways}}),
        bars("Prefill time of all", "hours",
             {"prefill": {way.name: way.prefill_s / 3_600 for way in found.ways}}),
        Chart("Hit by size of one pool", "million tokens", "share of prompt tokens",
              (Series("pool", pools), Series("infinite", ideal)), is_x_log=True),
        bars("Hit by block size, infinite cache", "share", {"hit": blocks}, "tokens a block"),
        Chart("Break-even of a fetch", "prefix, tokens", "GB/s",
              (Series("slower links do not pay", speeds),), is_x_log=True),
    ]  # fmt: skip


def write_page(path: Path, title: str, found: Assessment, machine: Machine | None) -> None:
    head = f"<p><strong>Verdict: {escape(found.verdict)}.</strong></p>"
    reasons = "".join(f"<li>{escape(line.strip())}</li>" for line in lines_of(found)[1:])
    rows = "".join(
        f"<tr><td>{escape(way.name)}</td><td>{way.hit:.3f}</td><td>{way.prefill_s:,.0f}</td>"
        f"<td>{way.mean_ttft_s:.3f}</td><td>{way.moved_bytes / 1e9:,.1f}</td></tr>"
        for way in found.ways
    )
    table = (
        "<table><tr><th></th><th>hit</th><th>prefill s</th><th>mean TTFT s</th>"
        f"<th>GB fetched</th></tr>{rows}</table>"
    )
    asked = f"<p>{found.num_requests:,} requests, {found.prompt_tokens:,} prompt tokens.</p>"
    parts = [head, f"<ul>{reasons}</ul>", asked, table]
    if machine is not None:
        link = machine.link_bytes_per_s
        measured = [f"memory {machine.memory_bytes_per_s / 1e9:.1f} GB/s"]
        measured.append(f"disk {machine.disk_bytes_per_s / 1e9:.2f} GB/s")
        measured += [f"link {link / 1e9:.2f} GB/s"] if link else []
        parts.append(f"<p>This machine: {', '.join(measured)}.</p>")
    parts += [svg_of(chart) for chart in charts_of(found)]
    path.write_text(page(title, parts), encoding="utf-8")
