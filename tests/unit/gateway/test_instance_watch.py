"""Old and new incarnations of one instance, in whatever order their reports come."""

from typing import Any, cast

from services.gateway.incarnation_order import MAX_INCARNATIONS, MAX_PROCESSES, IncarnationOrder
from services.gateway.instance_watch import InstanceWatch
from services.gateway.life_events import InstanceLost, InstanceReported
from shared.messages.common import InstanceRef
from shared.messages.reports import InstanceReport
from shared.runtime.bus import Bus
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
