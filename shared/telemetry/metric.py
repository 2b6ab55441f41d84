"""What a metric is, and one reading of it. Pure values."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A declared metric. A counter's name ends in `_total`; `buckets` are upper bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a counter's name, and no other, ends in _total")
        if (self.kind == "histogram") != bool(self.buckets):
            raise ValueError(f"{self.name}: a histogram, and no other, has buckets")

    def of(self, value: float, *labels: str) -> "Reading":
        """What it is now, with the values of its labels in order."""
        return Reading(self, labels, value)


class Distribution(NamedTuple):
    """How many values were in each bucket (the last one: above all bounds), and their sum."""

    counts: tuple[int, ...]
    total: float


class Reading(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


class Counts:
    """A counter by its labels; owned by the loop of its process."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def total(self) -> float:
        """Over all labels."""
        return sum(self._values.values())

    def readings(self) -> Iterator[Reading]:
        for labels, value in self._values.items():
            yield Reading(self._metric, labels, value)


class Histogram:
    """Counts of values by bucket and labels; some tenths of a microsecond a value."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._bounds = metric.buckets
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        self.observe_all((value,), *labels)

    def observe_all(self, values: Iterable[float], *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._totals[labels] = 0.0
        total = 0.0
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
            total += value
        self._totals[labels] += total

    def readings(self) -> Iterator[Reading]:
        for labels, counts in self._counts.items():
            yield Reading(self._metric, labels, Distribution(tuple(counts), self._totals[labels]))
