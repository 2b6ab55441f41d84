"""Old and new incarnations of one instance, in whatever order their reports come."""

from typing import Any, cast

import pytest

from services.gateway.incarnation_order import MAX_INCARNATIONS, MAX_PROCESSES, IncarnationOrder
from services.gateway.instance_watch import UNHEARD_S, InstanceWatch
from services.gateway.life_events import InstanceLost, InstanceReported
from shared.messages.common import InstanceRef
from shared.messages.reports import InstanceReport
from shared.runtime.bus import Bus
from shared.runtime.errors import NoResponder
from shared.runtime.tasks import Tasks


class Silent:
    """A bus and tasks that do nothing: reports are all that is heard."""

    def on_reconnect(self, callback: Any) -> None:
        return

    def start_contained(self, coroutine: Any, *, name: str) -> None:
        coroutine.close()


def watch() -> InstanceWatch:
    silent = Silent()
    return InstanceWatch(cast(Bus, silent), cast(Tasks, silent))


def report(incarnation: str) -> InstanceReport:
    return InstanceReport(
        service="decode",
        id="d",
        incarnation=incarnation,
        node="n",
        node_incarnation="n-1",
        state="ready",
        model="m",
        root=b"r",
        kv_format={},
        block_tokens=16,
        grid_tokens=16,
        block_bytes=1,
        context_tokens=512,
    )


def ref(incarnation: str) -> InstanceRef:
    return InstanceRef(id="d", incarnation=incarnation, node="n")


def test_a_late_report_of_an_old_incarnation_does_not_end_the_newer() -> None:
    watching = watch()
    events: list[InstanceLost | InstanceReported] = []
    watching.on_report(report("old"))
    watching.on_report(report("new"))
    watching.hold("decode", ref("new"), events.append)
    watching.on_report(report("old"))
    assert events == []
    watching.on_report(report("new"))
    assert events == [InstanceReported("new", True)]


def test_one_that_is_placed_before_its_first_report_is_newer_than_what_was_heard() -> None:
    watching = watch()
    events: list[InstanceLost | InstanceReported] = []
    watching.on_report(report("old"))
    watching.hold("decode", ref("new"), events.append)
    watching.on_report(report("old"))
    assert events == []


def test_a_report_of_a_newer_incarnation_ends_the_older_at_once() -> None:
    watching = watch()
    events: list[InstanceLost | InstanceReported] = []
    watching.on_report(report("old"))
    watching.hold("decode", ref("old"), events.append)
    watching.on_report(report("new"))
    assert events == [InstanceLost("old", "d was started anew", is_replaced=True)]


def test_the_order_is_bounded_and_unknown_ones_are_not_older() -> None:
    order = IncarnationOrder()
    for number in range(MAX_INCARNATIONS + 1):
        order.note("decode", "d", str(number))
    assert order.is_older("decode", "d", "1", "2")
    assert not order.is_older("decode", "d", "0", "2")
    assert not order.is_older("decode", "other", "1", "2")
    for number in range(MAX_PROCESSES):
        order.note("prefill", str(number), "i")
    assert not order.is_older("decode", "d", "1", "2")


class Unanswered(Silent):
    """Nobody is subscribed to what is asked."""

    is_connected = True

    def __init__(self, num_servers: int) -> None:
        self.num_servers = num_servers

    async def request(self, *_: Any, **__: Any) -> None:
        raise NoResponder("nobody")


@pytest.mark.parametrize(("num_servers", "is_lost_at_once"), [(1, True), (3, False)])
async def test_of_a_nats_cluster_an_instance_has_time_to_come_back_by_another_server(
    monkeypatch: pytest.MonkeyPatch, num_servers: int, is_lost_at_once: bool
) -> None:
    now_s = 100.0
    monkeypatch.setattr("services.gateway.instance_watch.monotonic_s", lambda: now_s)
    bus = Unanswered(num_servers)
    watching = InstanceWatch(cast(Bus, bus), cast(Tasks, bus))
    events: list[InstanceLost | InstanceReported] = []
    now_s = 110.0
    watching.hold("decode", ref("1"), events.append)
    ((key, watched),) = watching._watched.items()
    await watching._ping(key, watched)
    assert bool(events) is is_lost_at_once
    now_s += UNHEARD_S
    if not is_lost_at_once:
        await watching._ping(key, watched)
    assert events == [InstanceLost("1", "d is gone", is_replaced=False)]
