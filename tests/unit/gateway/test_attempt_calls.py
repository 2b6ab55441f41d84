"""Cancelling at instances that may not hear it at once."""

from typing import Any, cast

import pytest

from services.gateway import attempt_calls
from services.gateway.attempt_calls import AttemptCalls
from services.gateway.job import LEAST_TARGET_MS, Job
from services.gateway.life_events import AskPlacement, CancelAttempt
from shared.messages.common import InstanceRef, Ok, Sampling
from shared.messages.envelope import Message
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import NoResponder

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
