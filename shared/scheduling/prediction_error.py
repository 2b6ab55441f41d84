"""How far predictions were from what came, by component: shares of the real time."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from shared.scheduling.vocabulary import PredictedTimes

COMPONENTS = ("ttft", "queue", "load", "compute", "overhead", "handoff", "tbt")
MAX_KEPT = 512
LEAST_S = 0.01
"""A shorter real time counts as this: a millisecond more or less is no error."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    num_requests: int
    p50: float
    """Of the absolute errors; 0.25: off by a quarter of the real time."""
    p90: float
    bias: float
    """Median with its sign: above 0, it takes longer than predicted."""


class PredictionErrors:
    """Keeps the newest requests only, for what is off today may be learnt tomorrow."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[float]] = {
            name: deque(maxlen=MAX_KEPT) for name in COMPONENTS
        }

    def add(self, predicted: PredictedTimes, real: PredictedTimes, real_ttft_s: float) -> None:
        pairs = {
            "ttft": (predicted.ttft_s, real_ttft_s),
            "queue": (predicted.queue_s, real.queue_s),
            "load": (predicted.load_s, real.load_s),
            "compute": (predicted.compute_s, real.compute_s),
            "overhead": (predicted.overhead_s, real.overhead_s),
            "handoff": (predicted.handoff_s, real.handoff_s),
            "tbt": (predicted.tbt_s, real.tbt_s),
        }
        for name, (said_s, was_s) in pairs.items():
            if said_s > 0 or was_s > 0:
                self._errors[name].append((was_s - said_s) / max(was_s, LEAST_S))

    def summary(self) -> dict[str, ErrorSummary]:
        """Of components that anything is known about."""
        found = {}
        for name, errors in self._errors.items():
            if errors:
                signed = np.array(errors)
                p50, p90 = np.quantile(np.abs(signed), (0.5, 0.9))
                found[name] = ErrorSummary(
                    len(errors), float(p50), float(p90), float(np.median(signed))
                )
        return found
