"""Who is shown as what: states from silence, rates from counters, links, problems."""

from typing import Any

from shared.messages.conductor import StateReply
from shared.messages.micro import MicroPing
from shared.messages.reports import LEASE_S
from shared.overview.members import FORGET_S, MISSED_PINGS_S, SERVICES
from shared.overview.overview import Overview
from tests.support.ended import finished, gateway_report, instance_report, node_report


def ping(role: str, name: str) -> MicroPing:
    return MicroPing(name=f"moonpool-{role}", id="x", metadata={"role": role, "id": name})


def whole_cluster(now_s: float) -> Overview:
    overview = Overview()
    overview.hear(gateway_report(in_flight=3), now_s)
    overview.hear(node_report(), now_s)
    overview.hear(instance_report(), now_s)
    overview.hear(instance_report("decode", "decode-1"), now_s)
    overview.note_answers([ping(role, role) for role in ("conductor", "cache-index")], now_s)
    return overview


def states(overview: Overview, now_s: float) -> dict[str, str]:
    cluster = overview.sections(now_s)["cluster"]
    return {one["id"]: one["state"] for one in cluster["processes"]}


def test_a_whole_cluster_has_no_problems() -> None:
    sections = whole_cluster(10.0).sections(10.5)
    assert sections["cluster"]["problems"] == []
    assert sections["cluster"]["in_flight"] == 3
    assert {one["service"] for one in sections["cluster"]["processes"]} == set(SERVICES)


def test_before_everybody_was_asked_nobody_is_missed() -> None:
    overview = Overview()
    assert overview.sections(1.0)["cluster"]["problems"] == []
    overview.note_answers([], 1.0)
    assert "no conductor is there" in overview.sections(1.0)["cluster"]["problems"]


def test_a_silent_instance_is_gone_after_its_lease_and_forgotten_later() -> None:
    overview = whole_cluster(10.0)
    late_s = 10.0 + LEASE_S + 0.1
    assert states(overview, late_s)["prefill-1"] == "gone"
    assert "prefill-1 is gone" in overview.sections(late_s)["cluster"]["problems"]
    assert overview.sections(late_s)["instances"][0]["state"] == "gone"
    overview.hear(instance_report(), late_s)
    assert states(overview, late_s)["prefill-1"] == "ready"
    assert "prefill-1" not in states(overview, late_s + FORGET_S + 1)


def test_a_conductor_that_answers_no_more_is_gone() -> None:
    overview = whole_cluster(10.0)
    late_s = 10.0 + MISSED_PINGS_S + 0.1
    assert states(overview, late_s)["conductor"] == "gone"
    assert "no conductor is there" in overview.sections(late_s)["cluster"]["problems"]


def test_a_draining_process_is_named_as_a_problem() -> None:
    overview = whole_cluster(10.0)
    overview.hear(instance_report(state="draining"), 10.0)
    problems = overview.sections(10.0)["cluster"]["problems"]
    assert "prefill-1 is draining" in problems
    assert "no prefill is there" in problems


def test_one_that_drains_is_no_problem_once_its_successor_is_ready() -> None:
    overview = whole_cluster(10.0)
    overview.hear(gateway_report(incarnation="new"), 10.0)
    overview.hear(gateway_report(state="draining"), 10.1)
    assert overview.sections(10.1)["cluster"]["problems"] == []


def test_being_cut_off_is_the_one_problem_that_is_told() -> None:
    overview = whole_cluster(10.0)
    overview.is_connected = False
    problems = overview.sections(99.0)["cluster"]["problems"]
    assert len(problems) == 1
    assert "NATS" in problems[0]


def test_what_a_conductor_knows_does_not_outweigh_ones_own_word() -> None:
    overview = Overview()
    overview.hear(node_report(slots_free=1), 5.0)
    overview.note_state(StateReply(conductor="c", nodes=[node_report(), node_report("n2")]), 6.0)
    nodes = {one["id"]: one for one in overview.sections(6.0)["nodes"]}
    assert nodes["node-1"]["dram"]["free"] == 1
    assert nodes["n2"]["state"] == "ready"


def test_rates_are_of_the_last_seconds_and_start_anew_with_an_incarnation() -> None:
    overview = Overview()
    overview.hear(node_report(bytes_fetched_total=1_000), 10.0)
    overview.hear(node_report(bytes_fetched_total=5_000), 12.0)
    assert rate(overview, 12.0) == 2_000
    assert rate(overview, 30.0) == 0
    overview.hear(node_report(incarnation="new", bytes_fetched_total=10), 30.0)
    assert rate(overview, 30.0) == 0


def rate(overview: Overview, now_s: float) -> float:
    node: dict[str, Any] = overview.sections(now_s)["nodes"][0]
    value: float = node["rates"]["bytes_fetched_total"]
    return value


def test_links_have_traffic_and_health() -> None:
    overview = Overview()
    overview.hear(node_report("node-2"), 10.0)
    overview.hear(node_report(bytes_moved_by_peer={"node-2": 100}), 10.0)
    report = node_report(
        bytes_moved_by_peer={"node-2": 1_100, "node-9": 5},
        bytes_in_flight_by_peer={"node-2": 7},
        resting_transports={"node-2": ["rdma"]},
    )
    overview.hear(report, 12.0)
    first, second = overview.sections(12.0)["links"]
    assert (first["from"], first["to"], first["health"]) == ("node-2", "node-1", "resting: rdma")
    assert (first["bytes_per_s"], first["moved_bytes"], first["in_flight_bytes"]) == (500, 1_100, 7)
    assert (second["from"], second["health"]) == ("node-9", "a node is gone")


def test_sections_stay_equal_while_nothing_happens() -> None:
    overview = whole_cluster(10.0)
    overview.note_ended("gateway-1", "gi", 9.0, finished())
    assert overview.sections(10.2) == overview.sections(11.9)


def test_a_request_is_shown_with_its_decisions() -> None:
    overview = Overview()
    overview.note_ended("gateway-1", "gi", 9.0, finished(local_tokens=32))
    detail = overview.detail("gateway-1.gi.1")
    assert detail is not None
    assert detail["tokens"] == {"none": 68, "local": 32, "remote": 0, "disk": 0}
    assert detail["decisions"][0]["losers"][0]["reason"] == "not best"
    assert overview.detail("gateway-1.gi.2") is None
