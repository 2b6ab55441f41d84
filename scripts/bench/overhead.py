"""What serving adds to computing: TTFT as the client sees it minus the engine's own time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.bench.bars import Bar, judged
from scripts.bench.http_stream import HttpStream, HttpStreamError
from shared.runtime.clock import monotonic_s

TIMEOUT_S = 60.0
NUM_WARM_UP = 10
"""Requests that open connections and fill caches of code."""
P50_GOAL_MS, P99_GOAL_MS = 5.0, 15.0


class OverheadError(Exception):
    """A request gave no usable answer."""


@dataclass(frozen=True, slots=True)
class Sample:
    ttft_s: float
    """From before the request is sent until the bytes of its first text are here."""
    compute_s: float
    """Of the prefill, as its bill has it."""

    @property
    def overhead_s(self) -> float:
        return self.ttft_s - self.compute_s


def measure(
    base_url: str,
    model: str,
    *,
    num_requests: int,
    num_words: int,
    pause_s: float,
    on_run: Callable[[int], bool],
) -> list[Sample]:
    """One request in flight at a time, all prompts different, nothing cached. Blocks.

    After each a pause: the cluster still cleans up, reports and learns when the client has its end.
    `on_run` is told the number of the next request and says whether to send it.
    """
    samples = []
    try:
        with HttpStream(base_url, timeout_s=TIMEOUT_S) as http:
            for number in range(num_requests + NUM_WARM_UP):
                if not on_run(number):
                    break
                sample = _ask(http, model, f"Request {number}. " + "word " * num_words)
                if number >= NUM_WARM_UP:
                    samples.append(sample)
                time.sleep(pause_s)
    except (OSError, EOFError, ValueError, HttpStreamError) as error:
        raise OverheadError(f"{type(error).__name__}: {error}") from None
    return samples


def _ask(http: HttpStream, model: str, prompt: str) -> Sample:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "cache": "off",
    }
    request = http.post("/v1/chat/completions", body, {"x-moonpool-bill": "1"})
    first_s, compute_s = 0.0, None
    start_s = monotonic_s()
    http.send(request)
    for time_s, event in http.events():
        if not first_s and _has_text(event):
            first_s = time_s
        if "moonpool" in event:
            compute_s = float(event["moonpool"]["bill"]["real"]["compute_s"])
    if not first_s or compute_s is None:
        raise OverheadError("the answer had no text or no bill")
    return Sample(first_s - start_s, compute_s)


def _has_text(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event.get("choices", ()))


def bars_of(samples: list[Sample]) -> list[Bar]:
    added_ms = sorted(1000 * sample.overhead_s for sample in samples)
    p50 = statistics.median(added_ms)
    p99 = added_ms[min(len(added_ms) - 1, int(len(added_ms) * 0.99))]
    ttft_ms = 1000 * statistics.median(sample.ttft_s for sample in samples)
    note = f"{len(samples)} requests, one at a time; median TTFT {ttft_ms:.1f} ms"
    return [
        judged("TTFT over HTTP minus engine time, p50", p50, "<", P50_GOAL_MS, "ms", note=note),
        judged("TTFT over HTTP minus engine time, p99", p99, "<", P99_GOAL_MS, "ms"),
    ]
