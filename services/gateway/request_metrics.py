"""What a gateway's requests came to, as metrics: a view over their records and bills."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from services.gateway.job import Job
from services.gateway.request_record import RequestRecord
from shared.messages.bill import FinishedBill
from shared.telemetry import metrics
from shared.telemetry.metric import Counts, Histogram, Reading

CANCELLED = "cancelled"
FINISHED = ("stop", "length")


class RequestMetrics:
    """Counts each choice once, when it has ended, and what HTTP clients were answered."""

    def __init__(self) -> None:
        self.num_in_flight: Callable[[], int] = lambda: 0
        self.late_chunks: Callable[[], int] = lambda: 0
        self._requests = Counts(metrics.REQUESTS)
        self._refusals = Counts(metrics.REFUSALS)
        self._responses = Counts(metrics.HTTP_RESPONSES)
        self._retries = Counts(metrics.RETRIES)
        self._prompt_tokens = Counts(metrics.PROMPT_TOKENS)
        self._generation_tokens = Counts(metrics.GENERATION_TOKENS)
        self._queries = Counts(metrics.PREFIX_QUERIES)
        self._hits = Counts(metrics.PREFIX_HITS)
        self._slos = Counts(metrics.SLO_REQUESTS)
        self._wasted = Counts(metrics.WASTED_PREFILL)
        self._ttft = Histogram(metrics.TTFT)
        self._itl = Histogram(metrics.ITL)
        self._tbt = Histogram(metrics.TBT)
        self._duration = Histogram(metrics.DURATION)
        self._queue = Histogram(metrics.QUEUE_TIME)
        self._load = Histogram(metrics.LOAD_TIME)
        self._prefill = Histogram(metrics.PREFILL_TIME)
        self._handoff = Histogram(metrics.HANDOFF_TIME)
        self._decode = Histogram(metrics.DECODE_TIME)

    def ended(
        self, job: Job, record: RequestRecord, outcome: str, bill: FinishedBill | None
    ) -> None:
        """`outcome`: a finish reason, an error's code, or empty when nobody waited for it any more.

        Times and tokens are those of a finished request: its `bill`.
        """
        self._requests.add(1, job.model, outcome or CANCELLED)
        if outcome and outcome not in FINISHED:
            self.refused(outcome)
        self._wasted.add(record.wasted_prefill_s, job.model)
        self._retries.add(max(record.num_attempts - 1, 0), job.model)
        if bill is not None:
            self._finished(job, record, bill)

    def refused(self, reason: str) -> None:
        """A client got an error; `reason` is its code."""
        self._refusals.add(1, reason)

    def responded(self, route: str, status: int) -> None:
        self._responses.add(1, route, str(status))

    def _finished(self, job: Job, record: RequestRecord, bill: FinishedBill) -> None:
        model, real, reuse = job.model, bill.real, bill.reuse
        self._prompt_tokens.add(reuse.prompt_tokens, model)
        self._generation_tokens.add(bill.output_tokens, model)
        if job.cache == "on" and not reuse.scored_tokens:
            self._queries.add(reuse.prompt_tokens, model)
        self._hits.add(reuse.local_tokens - reuse.disk_tokens, model, "local", "dram")
        self._hits.add(reuse.disk_tokens, model, "local", "ssd")
        self._hits.add(reuse.remote_tokens, model, "remote", "dram")
        for histogram, seconds in (
            (self._queue, real.queue_s),
            (self._load, real.load_s),
            (self._prefill, real.compute_s),
            (self._handoff, real.handoff_s),
            (self._decode, bill.decode_s),
        ):
            histogram.observe(seconds, model)
        if bill.output_tokens:
            self._ttft.observe(real.ttft_s, model)
            self._duration.observe(real.ttft_s + bill.decode_s, model)
        if bill.output_tokens > 1:
            self._tbt.observe(real.tbt_s, model)
            self._itl.observe_all((late - early for early, late in pairwise(record.given_s)), model)
        for target, wanted_ms, was_s in (
            ("ttft", job.ttft_slo_ms, real.ttft_s),
            ("tbt", job.tbt_slo_ms, real.tbt_s),
        ):
            if wanted_ms is not None:
                self._slos.add(1, target, "yes" if was_s * 1e3 <= wanted_ms else "no")

    def readings(self) -> Iterator[Reading]:
        yield metrics.IN_FLIGHT.of(self.num_in_flight())
        yield metrics.LATE_CHUNKS.of(self.late_chunks())
        for kept in (
            self._requests, self._refusals, self._responses, self._retries, self._prompt_tokens,
            self._generation_tokens, self._queries, self._hits, self._slos, self._wasted,
            self._ttft, self._itl, self._tbt, self._duration, self._queue, self._load,
            self._prefill, self._handoff, self._decode,
        ):  # fmt: skip
            yield from kept.readings()
