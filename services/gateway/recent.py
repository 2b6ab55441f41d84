"""Keeps the last requests that ended, packed, until somebody asks for them."""

from collections import deque
from typing import Any

from services.gateway.errors import ApiError
from services.gateway.job import Job
from services.gateway.openai_schema import ChatBody, CompletionBody
from services.gateway.request_options import RequestOptions
from services.gateway.request_record import RequestRecord
from shared.messages.bill import FinishedBill
from shared.messages.common import ErrorCode, ErrorInfo
from shared.messages.envelope import decode, encode
from shared.messages.recent import (
    KEPT_REQUESTS,
    EndedRequest,
    Ending,
    RecentReply,
    RecentRequest,
)
from shared.runtime.clock import monotonic_s

MAX_REPLY_BYTES = 400_000
"""NATS takes messages of 1 MB unless it is told otherwise, and unpacked they are larger."""


class Recent:
    """Owns what ended, by number. About 2 KB each; unpacked only when asked for."""

    def __init__(self, gateway: str, incarnation: str) -> None:
        self._gateway = gateway
        self._incarnation = incarnation
        self._kept: deque[bytes] = deque(maxlen=KEPT_REQUESTS)
        self._newest = 0

    def note(
        self,
        job: Job,
        record: RequestRecord,
        bill: FinishedBill | None,
        error: ErrorInfo | None,
    ) -> None:
        """A request is over; without a bill and an error its client left."""
        self._keep(
            took_s=monotonic_s() - job.received_s,
            request_id=job.request_id,
            client_id=job.client_id,
            model=job.model,
            ending=_ending(record, bill, error),
            error=error,
            prompt_tokens=job.num_tokens,
            output_tokens=0 if bill is None else bill.output_tokens,
            wasted_prefill_s=record.wasted_prefill_s,
            tenant=job.tenant,
            user=job.user,
            ttft_slo_ms=job.ttft_slo_ms,
            tbt_slo_ms=job.tbt_slo_ms,
            bill=bill,
            decisions=record.decisions,
        )

    def note_no_room(
        self, body: ChatBody | CompletionBody, options: RequestOptions, error: ApiError
    ) -> None:
        """This gateway itself refused it."""
        self._keep(
            request_id=options.ids.request_id,
            client_id=options.ids.client_id,
            model=body.model,
            ending="refused",
            error=ErrorInfo(code=ErrorCode.OVERLOADED, message=error.message, is_retryable=True),
            tenant=options.caller.tenant.name,
            user=body.user,
        )

    async def on_request(self, request: RecentRequest) -> RecentReply:
        oldest = self._newest - len(self._kept) + 1
        first = max(request.after + 1, oldest)
        chosen: list[bytes] = []
        num_bytes = 0
        for number in range(first, min(first + request.limit, self._newest + 1)):
            packed = self._kept[number - oldest]
            num_bytes += len(packed)
            if chosen and num_bytes > MAX_REPLY_BYTES:
                break
            chosen.append(packed)
        return RecentReply(
            gateway=self._gateway,
            incarnation=self._incarnation,
            now_ms=_now_ms(),
            newest=self._newest,
            requests=[decode(packed, EndedRequest) for packed in chosen],
        )

    def _keep(self, **fields: Any) -> None:
        self._newest += 1
        ended = EndedRequest(number=self._newest, ended_ms=_now_ms(), **fields)
        self._kept.append(encode(ended))


def _ending(record: RequestRecord, bill: FinishedBill | None, error: ErrorInfo | None) -> Ending:
    if error is None:
        return "cancelled" if bill is None else "finished"
    if error.code == ErrorCode.CANCELLED:
        return "cancelled"
    return "failed" if record.was_placed and not record.is_refused_by_decode else "refused"


def _now_ms() -> int:
    return int(monotonic_s() * 1_000)
