"""How full the decode instances will be at some time: the paper's system-level prediction.

Every decode is taken to last the same time. A request counts from when its prefill will be done
until it has decoded so long; the pool's load is spread evenly. This conductor knows the times of
what it placed itself; the total is what the instances report, whoever placed it.
"""

from bisect import bisect_right, insort
from dataclasses import dataclass

LEARN_SHARE = 0.02
MAX_RECORDS = 100_000


@dataclass(slots=True)
class DecodeForecast:
    decode_time_s: float
    """How long a request stays in a batch; learnt from those that are done."""
    _joins_s: list[float]

    def __init__(self, decode_time_s: float) -> None:
        self.decode_time_s = decode_time_s
        self._joins_s = []

    def placed(self, joins_s: float, now_s: float) -> None:
        """A request was placed whose prefill is predicted to end at `joins_s`."""
        insort(self._joins_s, joins_s)
        ended = bisect_right(self._joins_s, now_s - self.decode_time_s)
        if ended > 1_000 or len(self._joins_s) > MAX_RECORDS:
            del self._joins_s[: max(ended, 1)]

    def learn(self, decode_s: float) -> None:
        if decode_s > 0:
            self.decode_time_s += LEARN_SHARE * (decode_s - self.decode_time_s)

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
