"""Draws a chart as inline SVG: no script, no library, no request to anywhere."""

import math
from collections.abc import Callable, Sequence
from html import escape

from scripts.charts.chart import Chart

WIDTH, HEIGHT = 640.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 34.0, 56.0
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0969da")


def svg_of(chart: Chart) -> str:
    points = [point for series in chart.series for point in series.points]
    if not points:
        return f"<p>{escape(chart.title)}: nothing to show</p>"
    top = max(max(y for _, y in points), 1e-12) * 1.08
    x_of = _x_scale(chart, [x for x, _ in points])

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" font-family="sans-serif"'
        ' font-size="12" style="max-width:720px;width:100%">',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="bold">{escape(chart.title)}</text>',
    ]
    for tick in ticks(top):
        y = y_of(tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d0d7de"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    draw = _bars if chart.kind == "bars" else _lines
    parts += draw(chart, x_of, y_of)
    parts += _legend(chart)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 22}" text-anchor="middle">{escape(chart.x_label)}</text>'
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text></svg>"
    )
    return "".join(parts)


def ticks(top: float) -> list[float]:
    """Four to eight round values from 0."""
    step = 10.0 ** math.floor(math.log10(top))
    for factor in (0.2, 0.5, 1.0):
        if top / (step * factor) <= 8:
            step *= factor
            break
    return [step * number for number in range(int(top / step) + 1)]


class _Scale:
    def __init__(self, low: float, high: float, is_log: bool, pad: float = 0.0) -> None:
        self._is_log = is_log
        self._low, self._high = self._place(low) - pad, self._place(high) + pad

    def _place(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self._is_log else value

    def __call__(self, value: float) -> float:
        share = (self._place(value) - self._low) / max(self._high - self._low, 1e-12)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def _x_scale(chart: Chart, xs: Sequence[float]) -> _Scale:
    if chart.kind == "bars":
        return _Scale(0, max(len(chart.labels) - 1, 0), False, pad=0.5)
    return _Scale(min(xs), max(xs), chart.is_x_log)


def _lines(chart: Chart, x_of: _Scale, y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(series.points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5" fill="{colour}">'
            f"<title>{escape(series.name)}: {x:g}, {y:.4g}</title></circle>"
            for x, y in series.points
        ]
    xs = sorted({x for series in chart.series for x, _ in series.points})
    every = max(1, math.ceil(len(xs) / 10))
    parts += [_x_text(x_of(x), f"{x:g}") for x in xs[::every]]
    return parts


def _bars(chart: Chart, x_of: _Scale, y_of: Callable[[float], float]) -> list[str]:
    slot = (WIDTH - LEFT - RIGHT) / max(len(chart.labels), 1)
    width = slot * 0.8 / max(len(chart.series), 1)
    parts = []
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        for place, value in series.points:
            x = x_of(place) - slot * 0.4 + number * width
            parts.append(
                f'<rect x="{x:.1f}" y="{y_of(value):.1f}" width="{width:.1f}" '
                f'height="{HEIGHT - BOTTOM - y_of(value):.1f}" fill="{colour}">'
                f"<title>{escape(series.name)}: {value:.4g}</title></rect>"
            )
    parts += [_x_text(x_of(at), label) for at, label in enumerate(chart.labels)]
    return parts


def _x_text(x: float, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(text)}</text>'
    )


def _legend(chart: Chart) -> list[str]:
    if len(chart.series) < 2:
        return []
    parts, x = [], LEFT
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<rect x="{x:.0f}" y="{HEIGHT - 12}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14:.0f}" y="{HEIGHT - 3}">{escape(series.name)}</text>'
        )
        x += 26 + 6.6 * len(series.name)
    return parts
