"""The answer of one choice as its client reads it: text by pieces, then the bill."""

import logging
from dataclasses import dataclass

from services.gateway.bills import Bills
from services.gateway.errors import ApiError
from services.gateway.job import Job
from services.gateway.life_events import Fail, GivePrompt, GiveTokens, StopMatched
from services.gateway.recent import Recent
from services.gateway.request_driver import Output, RequestDriver
from services.gateway.request_metrics import RequestMetrics
from services.gateway.request_record import RequestRecord
from services.gateway.text_stream import TextStream
from services.gateway.trace_context import trace_id
from shared.messages.bill import FinishedBill
from shared.messages.common import ErrorCode, ErrorInfo
from shared.messages.tokens import FinishReason, PromptLogprobs, TokenLogprobs
from shared.runtime.clock import monotonic_s
from shared.runtime.tasks import Tasks
from shared.telemetry.about import About

LOG = logging.getLogger("moonpool.gateway")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text (it may be empty) and the tokens it came from; the last has a finish reason."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, when the request asks for them."""


class Answer:
    """Owns the text side of one choice. `close` must be called, whatever happened before."""

    def __init__(
        self,
        *,
        job: Job,
        driver: RequestDriver,
        record: RequestRecord,
        text: TextStream,
        bills: Bills,
        metrics: RequestMetrics,
        recent: Recent,
        tasks: Tasks,
    ) -> None:
        self.job = job
        self.record = record
        self.bill: FinishedBill | None = None
        self.num_tokens = 0
        self.prompt: tuple[PromptLogprobs, ...] = ()
        """Log probabilities of the prompt, when this choice was to ask for them."""
        self._driver = driver
        self._text = text
        self._bills = bills
        self._metrics = metrics
        self._recent = recent
        self._tasks = tasks
        self._end = ""
        self._error: ErrorInfo | None = None

    def start(self) -> None:
        self._driver.start()

    def take(self, output: Output) -> Piece | None:
        """What the client gets of it, the last one with the reason; raises ApiError on a failure.

        None: tokens after a stop string are not the answer's.
        """
        if isinstance(output, Fail):
            self._end = str(output.error.code)
            self._error = output.error
            if self.record.is_refused_by_decode:
                self._keep_bill()  # nobody learns from it: it has no answer
            raise ApiError.from_info(output.error)
        if isinstance(output, GivePrompt):
            self.prompt = output.pieces
            return Piece("", ())
        if isinstance(output, GiveTokens):
            return None if self._text.is_stopped else self._piece(output)
        rest = self._text.finish()
        reason: FinishReason = "stop" if self._text.is_stopped else output.reason
        self._end = reason
        self.record.note_end(monotonic_s())
        self._make_bill()
        return Piece(rest, (), reason)

    @property
    def end(self) -> str:
        """Finish reason or error code; empty while neither is there."""
        return self._end

    def close(self) -> None:
        """The client has all it will take; what still runs is cancelled."""
        self._driver.abandon(ErrorCode.CANCELLED, "the client has gone")
        self._metrics.ended(self.job, self.record, self._end, self.bill)
        self._recent.note(self.job, self.record, self.bill, self._error)
        LOG.info(
            "request %s trace %s: %s, %d prompt tokens, %d cached, %d answered, ttft %.3f s",
            self.job.request_id,
            trace_id(self.job.traceparent),
            self._end or "client gone",
            self.job.num_tokens,
            self.record.cached_tokens,
            self.num_tokens,
            self.record.ttft_s,
            extra=About(self.job.request_id, self.job.traceparent).extra,
        )

    def _piece(self, given: GiveTokens) -> Piece:
        """Text up to a stop string; tokens after it are not the answer's."""
        text = ""
        num_used = 0
        for token in given.tokens:
            text += self._text.push(token)
            num_used += 1
            if self._text.is_stopped:
                self._driver.post(StopMatched())
                break
        self.num_tokens += num_used
        self.record.note_tokens(num_used, monotonic_s())
        return Piece(text, given.tokens[:num_used], logprobs=given.logprobs[:num_used])

    def _make_bill(self) -> None:
        self.bill = self._keep_bill()
        if self.bill is not None:
            self._tasks.start_contained(self._bills.publish(self.bill), name="publish bill")

    def _keep_bill(self) -> FinishedBill | None:
        bill = self.record.bill(self.job)
        if bill is not None:
            self._bills.keep(bill, self.job.client_id)
        return bill
