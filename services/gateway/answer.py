"""The answer of one request as its client reads it: text by pieces, then the bill."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from services.gateway.bills import Bills
from services.gateway.errors import ApiError
from services.gateway.job import Job
from services.gateway.life_events import Fail, GiveTokens, StopMatched
from services.gateway.prompts import Prompt
from services.gateway.request_driver import RequestDriver
from services.gateway.request_record import RequestRecord
from services.gateway.text_stream import TextStream
from shared.messages.bill import FinishedBill
from shared.messages.common import ErrorCode
from shared.messages.tokens import FinishReason, TokenLogprobs
from shared.runtime.clock import monotonic_s
from shared.runtime.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text (it may be empty) and the tokens it came from; the last has a finish reason."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, when the request asks for them."""


class Answer:
    """Owns the text side of one request. `close` must be called, whatever happened before."""

    def __init__(
        self,
        *,
        job: Job,
        prompt: Prompt,
        driver: RequestDriver,
        record: RequestRecord,
        text: TextStream,
        bills: Bills,
        tasks: Tasks,
    ) -> None:
        self.job = job
        self.prompt = prompt
        self.record = record
        self.bill: FinishedBill | None = None
        self.num_tokens = 0
        self._driver = driver
        self._text = text
        self._bills = bills
        self._tasks = tasks

    async def pieces(self) -> AsyncIterator[Piece]:
        """In order, the last one with the reason; raises ApiError when the request failed."""
        while True:
            output = await self._driver.outputs.get()
            if isinstance(output, Fail):
                raise ApiError.from_info(output.error)
            if isinstance(output, GiveTokens):
                if not self._text.is_stopped:
                    yield self._piece(output)
                continue
            rest = self._text.finish()
            reason: FinishReason = "stop" if self._text.is_stopped else output.reason
            self._make_bill()
            yield Piece(rest, (), reason)
            return

    def close(self) -> None:
        """The client has all it will take; what still runs is cancelled."""
        self._driver.abandon(ErrorCode.CANCELLED, "the client has gone")

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
        bill = self.record.bill(request_id=self.job.request_id, model=self.job.model)
        if bill is None:
            return
        self.bill = bill
        self._bills.keep(bill, self.job.client_id)
        self._tasks.start_contained(self._bills.publish(bill), name="publish bill")
