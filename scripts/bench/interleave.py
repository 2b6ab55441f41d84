"""Runs variants in turn, so that what else the machine does hits all of them alike.

Keeps every value and the load at each; a variant that fails is kept as failed, with its reason.
"""

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MIN_ROUNDS = 5
"""Of a run whose medians count."""


class VariantError(Exception):
    """A variant could not be measured; the sentence says why."""


@dataclass(slots=True)
class Series:
    """The values of one variant by round."""

    values: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """The machine's load average (1 min) when each value was taken."""
    failure: str = ""

    @property
    def is_complete(self) -> bool:
        return bool(self.values) and not self.failure

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"rounds": len(self.values)}
        if self.values:
            shown |= {
                "min": min(self.values),
                "median": self.median,
                "max": max(self.values),
                "load": round(statistics.median(self.loads), 2),
            }
        return shown | ({"failure": self.failure} if self.failure else {})


OnRun = Callable[[str, int], None]


def run_interleaved(
    variants: Mapping[str, Callable[[], float]],
    *,
    rounds: int,
    on_run: OnRun = lambda _name, _round: None,
    read_load: Callable[[], float] = lambda: os.getloadavg()[0],
) -> dict[str, Series]:
    """`rounds` values of each variant. Each round starts with another variant than the last."""
    if rounds < 1:
        raise ValueError(f"rounds: {rounds} is below 1")
    found = {name: Series() for name in variants}
    names = list(variants)
    for number in range(rounds):
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            series = found[name]
            if series.failure:
                continue
            on_run(name, number)
            load = read_load()
            try:
                value = variants[name]()
            except VariantError as error:
                series.failure = str(error)
                continue
            series.values.append(value)
            series.loads.append(load)
    return found


def paired_ratio(upper: Series, lower: Series) -> float:
    """The median over the rounds of upper / lower: both were taken at nearly the same time."""
    pairs = zip(upper.values, lower.values, strict=True)
    return statistics.median(high / low for high, low in pairs)
