"""Cancelling at instances that may not hear it at once."""

from typing import Any, cast

import pytest

from services.gateway import attempt_calls
from services.gateway.attempt_calls import AttemptCalls
from services.gateway.job import LEAST_TARGET_MS, Job
from services.gateway.life_events import AskPlacement, CancelAttempt, StartRun
from shared.messages.bill import Times
from shared.messages.common import InstanceRef, Ok, Sampling
from shared.messages.conductor import Placement, PlaceReply, PlaceRequest
from shared.messages.envelope import Message, decode
from shared.messages.prefill import UnplacedRun
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import BusTimeout, NoResponder

PREFILL = InstanceRef(id="p", incarnation="pi", node="n")
DECODE = InstanceRef(id="d", incarnation="di", node="n")


class BusAfterRestart:
    """The first question to each instance finds nobody."""

    def __init__(self, *, was_cut_off: bool) -> None:
        self._was_cut_off = was_cut_off
        self.asked: dict[str, int] = {}

    async def request(self, subject: str, _: Message, *_args: Any, **_more: Any) -> Message:
        self.asked[subject] = self.asked.get(subject, 0) + 1
        if self.asked[subject] == 1:
            raise NoResponder(subject)
        return Ok()

    def was_cut_off_within(self, _: float) -> bool:
        return self._was_cut_off


@pytest.mark.parametrize(("was_cut_off", "num_asked"), [(True, 2), (False, 1)])
async def test_a_cancel_is_said_again_when_instances_may_not_be_back_on_the_bus(
    monkeypatch: pytest.MonkeyPatch, was_cut_off: bool, num_asked: int
) -> None:
    monkeypatch.setattr(attempt_calls, "CANCEL_PAUSE_S", 0.0)
    bus = BusAfterRestart(was_cut_off=was_cut_off)
    calls = AttemptCalls(bus, "g", "gi")  # type: ignore[arg-type]

    class OneJob:
        request_id = "r"
        traceparent = ""

    await calls.cancel(cast(Job, OneJob()), CancelAttempt(0, PREFILL, DECODE, "over"))
    assert bus.asked == {
        "moonpool.prefill.p.cancel": num_asked,
        "moonpool.decode.d.cancel": num_asked,
    }


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "request_id": "r",
        "client_id": "r",
        "model": "m",
        "packed_tokens": bytes(4),
        "num_tokens": 1,
        "chain": b"",
        "sampling": Sampling(max_tokens=1),
        "cache": "on",
        "prefill": None,
        "decode": None,
        "received_s": monotonic_s(),
        "deadline_s": monotonic_s() + 60,
    }
    return Job(**(fields | changes))


def test_of_a_target_for_the_first_token_what_is_left_is_asked_for() -> None:
    calls = AttemptCalls(BusAfterRestart(was_cut_off=False), "g", "gi")  # type: ignore[arg-type]
    waited = job(received_s=monotonic_s() - 1, ttft_slo_ms=3_000.0, tbt_slo_ms=50.0)
    asked = calls.question(waited, AskPlacement(0, ()))
    assert asked.ttft_slo_ms is not None
    assert 1_000 < asked.ttft_slo_ms <= 2_000
    assert asked.tbt_slo_ms == 50.0
    late = job(received_s=monotonic_s() - 1, ttft_slo_ms=500.0)
    assert calls.question(late, AskPlacement(0, ())).ttft_slo_ms == LEAST_TARGET_MS
    # A client that has tokens already has had its first one.
    resumed = calls.question(waited, AskPlacement(1, (), is_resume=True))
    assert resumed.ttft_slo_ms is None
    assert resumed.tbt_slo_ms == 50.0


class ListeningBus(BusAfterRestart):
    """Keeps what it is given and answers nothing."""

    def __init__(self) -> None:
        super().__init__(was_cut_off=False)
        self.sent: list[Message] = []

    def ask(self, _subject: str, message: Message, *_args: Any, **_more: Any) -> Any:
        self.sent.append(message)

        async def nobody_answers() -> None:
            raise BusTimeout("nobody", 0.0)

        return nobody_answers()

    async def request(self, _subject: str, message: Message, *_args: Any, **_more: Any) -> Message:
        self.sent.append(message)
        return PlaceReply()


PLACEMENT = Placement(
    prefill=PREFILL, decode=DECODE, local_blocks=0, source=None, predicted=Times(), policy="p"
)


@pytest.mark.parametrize(
    ("changes", "ask", "goes_along"),
    [
        ({}, AskPlacement(3, ()), True),
        ({"num_tokens": 9}, AskPlacement(3, ()), False),
        ({}, AskPlacement(3, (), is_resume=True), False),
        ({"prompt_logprobs": 0}, AskPlacement(3, ()), False),
    ],
)
async def test_the_run_of_a_short_prompt_goes_with_the_question(
    changes: dict[str, Any], ask: AskPlacement, goes_along: bool
) -> None:
    bus = ListeningBus()
    calls = AttemptCalls(bus, "g", "gi", early_run_tokens=8)  # type: ignore[arg-type]
    one = job(namespace=b"ns", packed_tokens=b"abcd", **changes)
    with pytest.raises(BusTimeout):
        await calls.place(one, ask)
    (question,) = bus.sent
    assert isinstance(question, PlaceRequest)
    assert bool(question.run) is goes_along
    assert calls.goes_along(one, ask) is goes_along
    if goes_along:
        assert decode(question.run, UnplacedRun) == UnplacedRun(
            model="m",
            tokens=b"abcd",
            sampling=one.sampling,
            reply_subject="moonpool.gateway.g.tokens.r.3",
            namespace=b"ns",
        )


async def test_what_is_only_to_be_explained_takes_no_run_along() -> None:
    bus = ListeningBus()
    await AttemptCalls(bus, "g", "gi", early_run_tokens=8).explain(job())  # type: ignore[arg-type]
    (question,) = bus.sent
    assert isinstance(question, PlaceRequest)
    assert question.run == b""


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_run_that_is_there_is_not_sent_again(is_started: bool) -> None:
    bus = ListeningBus()
    calls = AttemptCalls(bus, "g", "gi", early_run_tokens=8)  # type: ignore[arg-type]
    placed = PLACEMENT.model_copy(update={"is_started": is_started})
    start = StartRun(0, placed, ())
    sent = calls.run(job(), start, "prefill")
    assert (sent is None) is is_started
    to_decode = calls.run(job(), start, "decode")
    assert to_decode is not None
    for one in (sent, to_decode):
        if one is not None:
            with pytest.raises(BusTimeout):
                await one
