"""What work costs: prefill, decode step, transfer. Starts from a prior, learns from real times.

Prefill of n tokens with a prefix of p is `base + linear·(n-p) + quadratic·(n²-p²)`, lengths in
1,024 tokens: the form of the paper's regression (causal attention is the quadratic part).
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
K = 1024.0
MAX_SAMPLES = 256
MAX_REQUESTS = 64
LEAST_REQUESTS = 4
REFIT_EVERY = 8
PRIOR_WEIGHT = 0.1
"""How hard the prior's shape holds, in samples. More, and some tens of samples do not overrule a
prior of another shape; less, and a handful of noisy ones overrule a right one."""
MAX_DECODE_SCALE = 1_000.0
"""Between a machine and the prior's; also what keeps a run of strange bills within bounds."""
DECODE_GAIN = 0.05
"""Of an answer's correction, what counts in the long run: answers differ in their luck."""
HUBER_SHARE = 0.25
"""A sample whose error is more than this share of its time counts less."""


@dataclass(frozen=True, slots=True)
class PrefillCoefficients:
    base_s: float
    linear_s: float
    quadratic_s: float

    def seconds(self, num_tokens: int, prefix_tokens: int) -> float:
        return float(self._seconds(num_tokens, prefix_tokens))

    def each_seconds(
        self, num_tokens: int, prefix_tokens: NDArray[np.int64] | int
    ) -> Floats | float:
        seconds: Floats | float = self._seconds(num_tokens, prefix_tokens)
        return seconds

    def _seconds(self, num_tokens: int, prefix_tokens: Any) -> Any:
        """For a number and for a column of them."""
        n, p = num_tokens / K, prefix_tokens / K
        return self.base_s + self.linear_s * (n - p) + self.quadratic_s * (n * n - p * p)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """The prior, as data: a small model on two CPU cores unless something else is given."""

    prefill: PrefillCoefficients = PrefillCoefficients(0.01, 0.5, 0.13)
    decode_step_s: float = 0.03
    decode_sequence_s: float = 0.004
    """Of a step, for each sequence of the batch."""
    decode_context_s: float = 0.001
    """Of a step, for each 1,024 tokens of context in the batch."""
    transfer_bytes_per_s: float = 2e9
    transfer_base_s: float = 0.002
    disk_bytes_per_s: float = 1e9
    request_s: float = 0.0
    """Of a TTFT, what is neither waiting, loading nor computing: HTTP, placement, messages."""


@dataclass(frozen=True, slots=True)
class PrefillSample:
    num_tokens: int
    prefix_tokens: int
    seconds: float


@dataclass(slots=True)
class CostModel:
    """Of one model. Deterministic: the same samples give the same coefficients."""

    profile: CostProfile = field(default_factory=CostProfile)
    _coefficients: PrefillCoefficients = field(init=False)
    _samples: deque[PrefillSample] = field(init=False)
    _num_seen: int = field(init=False, default=0)
    _decode_scale: float = field(init=False, default=1.0)
    _num_steps: int = field(init=False, default=0)
    _bytes_per_s: float = field(init=False)
    _disk_bytes_per_s: float = field(init=False)
    _requests_s: deque[float] = field(init=False)
    _request_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._coefficients = self.profile.prefill
        self._samples = deque(maxlen=MAX_SAMPLES)
        self._bytes_per_s = self.profile.transfer_bytes_per_s
        self._disk_bytes_per_s = self.profile.disk_bytes_per_s
        self._requests_s = deque(maxlen=MAX_REQUESTS)
        self._request_s = self.profile.request_s

    @property
    def coefficients(self) -> PrefillCoefficients:
        return self._coefficients

    @property
    def bytes_per_s(self) -> float:
        """Of one node's link."""
        return self._bytes_per_s

    @property
    def request_s(self) -> float:
        """What a TTFT takes beside waiting, loading and computing."""
        return self._request_s

    @property
    def decode_scale(self) -> float:
        """What learning makes of the prior's decode steps."""
        return self._decode_scale

    @property
    def disk_bytes_per_s(self) -> float:
        return self._disk_bytes_per_s

    def prefill_s(self, num_tokens: int, prefix_tokens: int) -> float:
        return self._coefficients.seconds(num_tokens, prefix_tokens)

    def prefill_each_s(
        self, num_tokens: int, prefix_tokens: NDArray[np.int64] | int
    ) -> Floats | float:
        """Of each prefix: a column for a column, a number for a number."""
        return self._coefficients.each_seconds(num_tokens, prefix_tokens)

    def transfer_s(self, num_bytes: int) -> float:
        if num_bytes <= 0:
            return 0.0
        return self.profile.transfer_base_s + num_bytes / self._bytes_per_s

    def transfer_many_s(self, num_bytes: Floats) -> Floats:
        seconds = self.profile.transfer_base_s + num_bytes / self._bytes_per_s
        return np.where(num_bytes > 0, seconds, 0.0)

    def decode_step_s(self, batch: float, context_tokens: float) -> float:
        """One step of a batch whose sequences have `context_tokens` together."""
        return float(self._step_s(batch, context_tokens)) if batch > 0 else 0.0

    def decode_many_step_s(
        self, batch: NDArray[np.int64], context_tokens: NDArray[np.int64]
    ) -> Floats:
        """Of batches that are not empty."""
        seconds: Floats = self._step_s(batch, context_tokens)
        return seconds

    def _step_s(self, batch: Any, context_tokens: Any) -> Any:
        """For numbers and for columns of them."""
        profile = self.profile
        step_s = profile.decode_step_s + profile.decode_sequence_s * batch
        return self._decode_scale * (step_s + profile.decode_context_s * context_tokens / K)

    # --- learning ------------------------------------------------------------------------------
    def learn_prefill(self, sample: PrefillSample) -> None:
        if sample.seconds <= 0 or not 0 <= sample.prefix_tokens < sample.num_tokens:
            return
        self._samples.append(sample)
        self._num_seen += 1
        if self._num_seen <= REFIT_EVERY or self._num_seen % REFIT_EVERY == 0:
            self._coefficients = fit_prefill(self._samples, self.profile.prefill)

    def learn_transfer(self, num_bytes: int, seconds: float) -> None:
        """Small transfers say nothing of the bandwidth."""
        if num_bytes >= 1 << 20 and seconds > self.profile.transfer_base_s:
            measured = num_bytes / (seconds - self.profile.transfer_base_s)
            self._bytes_per_s += 0.2 * (
                _within_times(measured, self._bytes_per_s, 8) - self._bytes_per_s
            )

    def learn_request(self, seconds: float) -> None:
        """The median of the last: one that was put off says nothing of the others."""
        self._requests_s.append(max(seconds, 0.0))
        if len(self._requests_s) >= LEAST_REQUESTS:
            self._request_s = median(self._requests_s)

    def learn_disk(self, num_bytes: int, seconds: float) -> None:
        """Of one node's SSD tier, checksums included."""
        if num_bytes >= 1 << 20 and seconds > 0:
            measured = num_bytes / seconds
            self._disk_bytes_per_s += 0.2 * (
                _within_times(measured, self._disk_bytes_per_s, 8) - self._disk_bytes_per_s
            )

    def learn_decode(self, tbt_s: float, context_tokens: int) -> None:
        """When the batch is not known: as if it had been alone."""
        self.learn_step(tbt_s, self.decode_step_s(1, context_tokens) / self._decode_scale)

    def learn_step(self, tbt_s: float, prior_s: float) -> None:
        """`prior_s`: what the prior says of the batch it joined; TBT is of the longest steps.

        Never what was predicted: answers last long, so that a prediction carries the scale of its
        time, and many of one scale would be corrected by each of them.
        """
        if tbt_s > 0 and prior_s > 0:
            ratio = _within_times(tbt_s / prior_s / self._decode_scale, 1.0, 4)
            self._num_steps += 1
            self._decode_scale *= ratio ** max(DECODE_GAIN, 1.0 / (self._num_steps + 1))
            self._decode_scale = _within_times(self._decode_scale, 1.0, MAX_DECODE_SCALE)


def _within_times(value: float, center: float, times: float) -> float:
    """One strange measurement moves an average only so far."""
    return min(max(value, center / times), center * times)


def fit_prefill(
    samples: Collection[PrefillSample], prior: PrefillCoefficients
) -> PrefillCoefficients:
    """Least squares on relative errors, robust (Huber), drawn to the prior, never negative."""
    n = np.array([sample.num_tokens for sample in samples]) / K
    p = np.array([sample.prefix_tokens for sample in samples]) / K
    seconds = np.array([sample.seconds for sample in samples])
    features = np.stack([np.ones_like(n), n - p, n * n - p * p], axis=1)
    start = np.array([prior.base_s, prior.linear_s, prior.quadratic_s])
    # The prior's shape scaled to the samples: few samples move the level, many the shape.
    start = start * median((seconds / np.maximum(features @ start, 1e-9)).tolist())
    # A coefficient moves by 1 of these when it alone would account for a usual request.
    scale = median(seconds.tolist()) / np.maximum(np.mean(features, axis=0), 1e-9)
    ridge = np.diag(PRIOR_WEIGHT / scale**2)
    # Of small samples the fixed part decides, of long ones the slope: relative errors count.
    relative = 1.0 / np.maximum(seconds, 1e-3)
    weights = np.ones_like(seconds)
    found = start
    for _ in range(6):
        rows = features * (relative * np.sqrt(weights))[:, None]
        target = seconds * relative * np.sqrt(weights)
        solved = np.linalg.solve(rows.T @ rows + ridge, rows.T @ target + ridge @ start)
        found = np.maximum(solved, 0.0)
        error = np.abs(features @ found - seconds) * relative
        before, weights = weights, np.minimum(1.0, HUBER_SHARE / np.maximum(error, 1e-12))
        if np.array_equal(weights, before):
            break  # another round would find the same
    return PrefillCoefficients(float(found[0]), float(found[1]), float(found[2]))
