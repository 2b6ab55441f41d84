"""Writes charts to a file: HTML by our own drawing, PNG by matplotlib where it is installed."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from scripts.charts.chart import Chart
from scripts.charts.svg import svg_of
from scripts.cli.output import CommandError

STYLE = "body{font:15px/1.5 sans-serif;max-width:820px;margin:2em auto;padding:0 1em}"
TABLE_STYLE = "table{border-collapse:collapse}td,th{border:1px solid #d0d7de;padding:2px 8px}"


def check_plot(path: Path | None) -> None:
    """Before anything is computed: a bad name or a missing package is told at once."""
    if path is None:
        return
    if path.suffix not in (".png", ".html"):
        raise CommandError(f"--plot: {path.name} is neither .png nor .html")
    if not path.parent.is_dir():
        raise CommandError(f"--plot: there is no folder {path.parent}")
    if path.suffix == ".png":
        _pyplot()


def write_charts(path: Path, title: str, charts: Sequence[Chart]) -> None:
    if path.suffix == ".png":
        _write_png(path, charts)
    else:
        path.write_text(page(title, [svg_of(chart) for chart in charts]), encoding="utf-8")


def page(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{STYLE}{TABLE_STYLE}</style></head><body><h1>{escape(title)}</h1>\n"
        f"{body}\n</body></html>\n"
    )


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise CommandError(
            "--plot: a .png needs matplotlib",
            hint="pip install 'moonpool[plot]', or give a name that ends in .html",
        ) from None
    return pyplot


def _write_png(path: Path, charts: Sequence[Chart]) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(len(charts), 1, figsize=(8, 4.2 * len(charts)), squeeze=False)
    for (axis,), chart in zip(axes, charts, strict=True):
        if chart.kind == "bars":
            width = 0.8 / max(len(chart.series), 1)
            for number, series in enumerate(chart.series):
                places = [x - 0.4 + (number + 0.5) * width for x, _ in series.points]
                axis.bar(places, [y for _, y in series.points], width, label=series.name)
            axis.set_xticks(range(len(chart.labels)), chart.labels)
        else:
            for series in chart.series:
                points = sorted(series.points)
                xs, ys = [x for x, _ in points], [y for _, y in points]
                axis.plot(xs, ys, marker="o", label=series.name)
            if chart.is_x_log:
                axis.set_xscale("log")
        axis.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if len(chart.series) > 1:
            axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
