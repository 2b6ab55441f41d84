"""How full the decode instances will be at some time: system-level prediction, as in the paper.

The paper takes every decode to last the same time. Answers differ by orders of magnitude: a burst
that is thought to end all at once lets in the next burst, and the pool swings. Here those on their
way last as long as others did, by the times that were seen; and those in a batch, whose ages are
not known, as the same times say of a pool in balance: mostly long ones, that stay. Who is in the
batches, and who is promised, the instances say; when those will join, this conductor knows of what
it placed itself.
"""

import itertools
from bisect import bisect_right, insort
from collections import deque

PRIOR_WEIGHT = 5.0
"""The first guess of the decode time counts as so many requests."""
MEMORY = 500.0
"""Requests until what was observed before has faded."""
MAX_SAMPLES = 256
LEAST_SAMPLES = 16
"""With fewer, all are taken to last between nothing and twice the mean."""
RESAMPLE_EVERY = 8
MAX_RECORDS = 100_000
FIRST_ANSWER_TOKENS = 128.0
ANSWER_SHARE = 0.02
"""Weight of the newest answer in the mean length."""


class DecodeForecast:
    def __init__(self, decode_time_s: float) -> None:
        self.answer_tokens = FIRST_ANSWER_TOKENS
        self._joins_s: list[float] = []
        """Of those whose prefill is not done yet, in order."""
        self._in_batches_s = PRIOR_WEIGHT * decode_time_s
        self._num_ended = PRIOR_WEIGHT
        self._lasted_s: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._num_seen = 0
        self._set_shape([0.05 + 0.1 * step for step in range(20)])

    def _set_shape(self, shape: list[float]) -> None:
        """Decode times over their mean."""
        self._shape = sorted(shape)
        from_the_end = list(itertools.accumulate(reversed(self._shape), initial=0.0))
        self._longer = from_the_end[::-1]
        """The sum of those from here on."""

    @property
    def decode_time_s(self) -> float:
        """How long a request stays in a batch: time spent there by all, by how many have left.

        Those still there count too, so that a pool that fills up with long ones shows at once.
        """
        return self._in_batches_s / self._num_ended

    def stayed(self, num_requests: int, seconds: float) -> None:
        """So many were in a batch for so long."""
        self._in_batches_s += num_requests * max(seconds, 0.0)

    def answered(self, num_tokens: int) -> None:
        if num_tokens > 0:
            self.answer_tokens += ANSWER_SHARE * (num_tokens - self.answer_tokens)

    def ended(self, decode_s: float = 0.0) -> None:
        """One has left its batch after `decode_s`; 0: not known."""
        keep = 1.0 - 1.0 / MEMORY
        self._in_batches_s *= keep
        self._num_ended = self._num_ended * keep + 1.0
        if decode_s > 0:
            self._lasted_s.append(decode_s)
            self._num_seen += 1
            if len(self._lasted_s) >= LEAST_SAMPLES and self._num_seen % RESAMPLE_EVERY == 0:
                mean_s = sum(self._lasted_s) / len(self._lasted_s)
                self._set_shape([lasted_s / mean_s for lasted_s in self._lasted_s])

    def placed(self, joins_s: float, now_s: float) -> None:
        """A request was placed whose prefill is predicted to end at `joins_s`."""
        insort(self._joins_s, joins_s)
        joined = bisect_right(self._joins_s, now_s)
        if joined > 1_000 or len(self._joins_s) > MAX_RECORDS:
            del self._joins_s[: max(joined, 1)]

    def stays(self, after_s: float) -> float:
        """Share of those in a batch that is still there so much later."""
        times = max(after_s, 0.0) / max(self.decode_time_s, 1e-9)
        first = bisect_right(self._shape, times)
        rest = self._longer[first] - times * (len(self._shape) - first)
        return max(rest, 0.0) / self._longer[0]

    def joins(self, time_s: float, now_s: float) -> float:
        """Share of those still on their way that is in the batches at `time_s`; 1 when unknown."""
        known = self._joins_s
        first, upto = bisect_right(known, now_s), bisect_right(known, time_s)
        if first == len(known):
            return 1.0
        if upto == first:
            return 0.0
        # As if all of them had joined when the middle one does.
        times = (time_s - known[(first + upto) // 2]) / max(self.decode_time_s, 1e-9)
        stays = 1.0 - bisect_right(self._shape, times) / len(self._shape)
        return (upto - first) / (len(known) - first) * stays
