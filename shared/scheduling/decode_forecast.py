"""How full the decode instances will be at some time: the paper's system-level prediction.

Every decode is taken to last the same time. A request counts from when its prefill will be done
until it has decoded so long; the pool's load is spread evenly. This conductor knows the times of
what it placed itself; the total is what the instances report, whoever placed it.
"""

from bisect import bisect_right, insort

PRIOR_WEIGHT = 5.0
"""The first guess of the decode time counts as so many requests."""
MEMORY = 500.0
"""Requests until what was observed before has faded."""
MAX_RECORDS = 100_000
FIRST_ANSWER_TOKENS = 128.0
ANSWER_SHARE = 0.02
"""Weight of the newest answer in the mean length."""


class DecodeForecast:
    def __init__(self, decode_time_s: float) -> None:
        self.answer_tokens = FIRST_ANSWER_TOKENS
        self._joins_s: list[float] = []
        self._in_batches_s = PRIOR_WEIGHT * decode_time_s
        self._num_ended = PRIOR_WEIGHT

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

    def ended(self) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self._in_batches_s *= keep
        self._num_ended = self._num_ended * keep + 1.0

    def placed(self, joins_s: float, now_s: float) -> None:
        """A request was placed whose prefill is predicted to end at `joins_s`."""
        insort(self._joins_s, joins_s)
        ended = bisect_right(self._joins_s, now_s - self.decode_time_s)
        if ended > 1_000 or len(self._joins_s) > MAX_RECORDS:
            del self._joins_s[: max(ended, 1)]

    def share_at(self, time_s: float, now_s: float) -> float:
        """Requests in the batches at `time_s`, as a share of all that are promised or in them now.

        1 when nothing is known: as full as now.
        """
        now = len(self._joins_s) - bisect_right(self._joins_s, now_s - self.decode_time_s)
        if now == 0:
            return 1.0
        ended = bisect_right(self._joins_s, time_s - self.decode_time_s)
        joined = bisect_right(self._joins_s, time_s)
        return (joined - ended) / now
