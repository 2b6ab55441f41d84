"""An idle process says the same half as often; what is new, and work, is said at every turn."""

import asyncio
from typing import Any

import pytest

from shared.messages.reports import (
    IDLE_REPORT_INTERVAL_S,
    GatewayReport,
    InstanceReport,
    NodeReport,
)
from shared.runtime.heartbeat import Heartbeat, Report
from tests.support.deadline import until
from tests.support.ended import PREFILL


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("shared.runtime.heartbeat.monotonic_s", lambda: self.now_s)


class Bus:
    def __init__(self) -> None:
        self.said: list[Report] = []
        self.is_connected = True

    async def publish(self, _subject: str, report: Report) -> None:
        self.said.append(report)


def gateway(in_flight: int = 0, state: Any = "ready") -> GatewayReport:
    return GatewayReport(id="gateway-1", incarnation="g", state=state, in_flight=in_flight)


async def said_of(clock: Clock, reports: list[Report], step_s: float) -> int:
    """How many of these are published when there is one each `step_s`."""
    bus = Bus()
    beat = Heartbeat(bus, "moonpool.report.gateway.gateway-1", lambda: reports[0])  # type: ignore[arg-type]
    for report in reports:
        await beat._say(report)
        clock.now_s += step_s
    return len(bus.said)


@pytest.mark.parametrize(
    ("reports", "wanted"),
    [
        ([gateway()] * 6, 3),
        ([gateway(in_flight=1)] * 6, 6),
        ([gateway(), gateway(in_flight=1), gateway(), gateway(), gateway()], 4),
        ([gateway(), gateway(state="draining"), gateway(state="draining")], 2),
    ],
    ids=["idle", "at work", "work comes and goes", "drains"],
)
async def test_old_news_of_an_idle_process_are_said_half_as_often(
    monkeypatch: pytest.MonkeyPatch, reports: list[Report], wanted: int
) -> None:
    assert await said_of(Clock(monkeypatch), reports, IDLE_REPORT_INTERVAL_S / 2) == wanted


async def test_many_pokes_are_one_report_of_what_is_then() -> None:
    bus, now = Bus(), [gateway()]
    beat = Heartbeat(bus, "moonpool.report.gateway.gateway-1", lambda: now[0])  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(beat.run())
        await until(lambda: bus.said, what="it says that it is there")
        for in_flight in (1, 2, 3):
            now[0] = gateway(in_flight=in_flight)
            beat.poke()
        await until(lambda: bus.said[-1] == gateway(in_flight=3), what="the news are said")
        now[0] = gateway(in_flight=4)
        beat.poke()
        await until(lambda: bus.said[-1] == gateway(in_flight=4), what="so are later ones")
        beating.cancel()
    assert gateway(in_flight=1) not in bus.said
    assert gateway(in_flight=2) not in bus.said


def test_who_holds_or_moves_anything_is_not_idle() -> None:
    def node(**changes: int) -> NodeReport:
        return NodeReport(id="node-1", incarnation="n", state="ready", **changes)

    assert node(slots_free=3, slots_sealed=2).is_idle
    for name in ("slots_writing", "slots_private", "slots_leased", "bytes_in_flight"):
        assert not node(**{name: 1}).is_idle

    def instance(**changes: int) -> InstanceReport:
        return InstanceReport(
            service="prefill",
            id=PREFILL.id,
            incarnation=PREFILL.incarnation,
            node="node-1",
            node_incarnation="n",
            state="ready",
            model="m",
            root=b"r",
            kv_format={},
            block_tokens=256,
            grid_tokens=256,
            block_bytes=1,
            context_tokens=1,
            **changes,
        )

    assert instance(free_tokens=5).is_idle
    assert not instance(queued_requests=1).is_idle
    assert not instance(running=1).is_idle
