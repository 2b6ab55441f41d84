"""Cancelling at instances that may not hear it at once."""

from typing import Any, cast

import pytest

from services.gateway import attempt_calls
from services.gateway.attempt_calls import AttemptCalls
from services.gateway.job import Job
from services.gateway.life_events import CancelAttempt
from shared.messages.common import InstanceRef, Ok
from shared.messages.envelope import Message
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

    await calls.cancel(cast(Job, OneJob()), CancelAttempt(0, PREFILL, DECODE, "over"))
    assert bus.asked == {
        "moonpool.prefill.p.cancel": num_asked,
        "moonpool.decode.d.cancel": num_asked,
    }
