"""What a chart shows, whatever draws it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`bars`: one bar for each name of `labels` and series; x of a point is its place there."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["lines", "bars"] = "lines"
    labels: tuple[str, ...] = ()
    is_x_log: bool = False


def bars(title: str, y_label: str, series: dict[str, dict[str, float]], x_label: str = "") -> Chart:
    """From series by name of values by label; labels keep their first order."""
    labels = tuple(dict.fromkeys(label for values in series.values() for label in values))
    place = {label: float(number) for number, label in enumerate(labels)}
    made = tuple(
        Series(name, tuple((place[label], value) for label, value in values.items()))
        for name, values in series.items()
    )
    return Chart(title, x_label, y_label, made, "bars", labels)
