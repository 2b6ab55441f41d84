"""What one request cost, as it becomes known, and the bill made of it. Pure."""

from collections.abc import Sequence
from typing import Any

from services.gateway.job import Job
from services.gateway.life_events import Stage, StageReported
from shared.messages.bill import FinishedBill, Reuse, Times, joined_transports
from shared.messages.conductor import Placement, PlaceReply
from shared.messages.recent import Decision
from shared.scheduling import slo

MAX_DECISIONS = 5
"""As many as a request may have runs."""


class RequestRecord:
    """Owns placements, stage reports and the times at which tokens were given."""

    def __init__(self, *, received_s: float, prompt_tokens: int) -> None:
        self._received_s = received_s
        self._prompt_tokens = prompt_tokens
        self._placement: Placement | None = None
        self._times: dict[Stage, Times] = {}
        self._reuse: dict[tuple[int, Stage], Reuse] = {}
        self._given_s: list[float] = []
        self._ended_s: float | None = None
        self.num_attempts = 0
        self._had_to_wait = False
        """For a place: what passed then is not what every request costs."""
        self.is_refused_by_decode = False
        """When its prefill was done, and no token was given yet."""
        self.decisions: list[Decision] = []
        """What conductors said, the latest last."""

    def note_decision(self, attempt: int, reply: PlaceReply) -> None:
        """A request that waits for room asks again: of equal refusals the last one is kept."""
        self._had_to_wait = self._had_to_wait or reply.placement is None
        if self.decisions and self.decisions[-1].placement is None:
            self.decisions.pop()
        decision = Decision.of(attempt, reply)
        self.decisions = [*self.decisions[1 - MAX_DECISIONS :], decision]

    def note_placement(self, placement: Placement) -> None:
        self._placement = placement

    def note_stage(self, report: StageReported) -> None:
        """Repeats replace; of a stage that ran twice the last times count."""
        if report.times is not None:
            self._times[report.stage] = report.times
        if report.reuse is not None:
            self._reuse[report.attempt, report.stage] = report.reuse

    @property
    def wasted_prefill_s(self) -> float:
        """What was computed for nothing."""
        prefill = self._times.get("prefill")
        return prefill.compute_s if self.is_refused_by_decode and prefill is not None else 0.0

    def note_tokens(self, num_tokens: int, now_s: float) -> None:
        """Tokens were handed to the client's stream."""
        self._given_s.extend([now_s] * num_tokens)

    def note_end(self, now_s: float) -> None:
        """The answer is whole."""
        self._ended_s = now_s

    @property
    def given_s(self) -> Sequence[float]:
        """When each token of the answer was given."""
        return self._given_s

    @property
    def was_placed(self) -> bool:
        """Whether it ever ran."""
        return self._placement is not None

    @property
    def ttft_s(self) -> float:
        """From the whole request to token 0; to the end of an answer that has no tokens."""
        first_s = self._given_s[0] if self._given_s else self._ended_s
        return 0.0 if first_s is None else slo.ttft_s(self._received_s, first_s)

    @property
    def cached_tokens(self) -> int:
        """The prefill's own number, never more than the prompt has."""
        return self.reuse.cached_tokens

    @property
    def reuse(self) -> Reuse:
        """Cached tokens as the first prefill that spoke had them; bytes of all attempts."""
        attempts = sorted({attempt for attempt, _ in self._reuse})
        by_attempt = [self._of_attempt(attempt) for attempt in attempts]
        if not by_attempt:
            return Reuse(prompt_tokens=self._prompt_tokens)
        local_tokens = min(by_attempt[0].local_tokens, self._prompt_tokens)
        remote_tokens = min(by_attempt[0].remote_tokens, self._prompt_tokens - local_tokens)
        return Reuse(
            prompt_tokens=self._prompt_tokens,
            local_tokens=local_tokens,
            remote_tokens=remote_tokens,
            disk_tokens=min(by_attempt[0].disk_tokens, local_tokens),
            disk_bytes=sum(one.disk_bytes for one in by_attempt),
            disk_s=sum(one.disk_s for one in by_attempt),
            fetched_bytes=sum(one.fetched_bytes for one in by_attempt),
            fetch_s=sum(one.fetch_s for one in by_attempt),
            streamed_bytes=sum(one.streamed_bytes for one in by_attempt),
            stream_s=sum(one.stream_s for one in by_attempt),
            hidden_bytes=sum(one.hidden_bytes for one in by_attempt),
            tail_s=max(one.tail_s for one in by_attempt),
            transport=joined_transports(one.transport for one in by_attempt),
            scored_tokens=max(one.scored_tokens for one in by_attempt),
        )

    def _of_attempt(self, attempt: int) -> Reuse:
        """Prefill and decode of one attempt speak of the same bytes: the larger number is later."""
        found = [reuse for (number, _), reuse in self._reuse.items() if number == attempt]
        prefill = self._reuse.get((attempt, "prefill"), found[-1])
        return prefill.model_copy(
            update={
                "fetched_bytes": max(one.fetched_bytes for one in found),
                "fetch_s": max(one.fetch_s for one in found),
                "streamed_bytes": max(one.streamed_bytes for one in found),
                "stream_s": max(one.stream_s for one in found),
                "hidden_bytes": max(one.hidden_bytes for one in found),
                "tail_s": max(one.tail_s for one in found),
                "transport": joined_transports(one.transport for one in found),
            }
        )

    def bill(self, job: Job) -> FinishedBill | None:
        """None when the request was never placed."""
        placement = self._placement
        if placement is None:
            return None
        prefill, decode = self._times.get("prefill") or Times(), self._times.get("decode")
        known_s = max(prefill.queue_s, prefill.load_s) + prefill.compute_s
        is_usual = self.num_attempts == 1 and not self._had_to_wait
        real = prefill.model_copy(
            update={
                "overhead_s": max(self.ttft_s - known_s, 0.0) if is_usual else 0.0,
                "handoff_s": decode.handoff_s if decode is not None else 0.0,
                "ttft_s": self.ttft_s,
                "tbt_s": slo.tbt_s(self._given_s),
                "preempted_s": decode.preempted_s if decode is not None else 0.0,
                "preemptions": decode.preemptions if decode is not None else 0,
            }
        )
        return FinishedBill(
            request_id=job.request_id,
            attempts=self.num_attempts,
            model=job.model,
            prefill=placement.prefill,
            decode=placement.decode,
            predicted=placement.predicted,
            real=real,
            reuse=self.reuse,
            output_tokens=len(self._given_s),
            decode_s=self._given_s[-1] - self._given_s[0] if self._given_s else 0.0,
            wasted_prefill_s=self.wasted_prefill_s,
            traceparent=job.traceparent,
            tenant=job.tenant,
            user=job.user,
        )


def bill_for_client(bill: FinishedBill) -> dict[str, Any]:
    """The `moonpool` object of a response."""
    reuse = bill.reuse
    return {
        "request_id": bill.request_id,
        "prefill": bill.prefill.id,
        "decode": None if bill.decode is None else bill.decode.id,
        "prefill_node": bill.prefill.node,
        "decode_node": None if bill.decode is None else bill.decode.node,
        "cached_tokens": reuse.cached_tokens,
        "cached_from": cached_from(reuse),
        "scored_tokens": reuse.scored_tokens,
        "bytes_moved": reuse.fetched_bytes + reuse.streamed_bytes,
        "fetched_bytes": reuse.fetched_bytes,
        "streamed_bytes": reuse.streamed_bytes,
        "disk_tokens": reuse.disk_tokens,
        "disk_bytes": reuse.disk_bytes,
        "disk_s": reuse.disk_s,
        "transfer_s": reuse.fetch_s + reuse.stream_s,
        "hidden_bytes": reuse.hidden_bytes,
        "tail_s": reuse.tail_s,
        "transport": reuse.transport,
        "ttft_s": bill.real.ttft_s,
        "attempts": bill.attempts,
        "wasted_prefill_s": bill.wasted_prefill_s,
        "bill": {"predicted": bill.predicted.model_dump(), "real": bill.real.model_dump()},
    }


def cached_from(reuse: Reuse) -> str:
    """none, local, remote or mixed."""
    if reuse.local_tokens and reuse.remote_tokens:
        return "mixed"
    if reuse.local_tokens:
        return "local"
    return "remote" if reuse.remote_tokens else "none"
