"""A frame of `moonpool top`: all of it has a place on a small screen."""

import io

import pytest
from rich.console import Console

from scripts.top.frame import ORDERS, Look, draw
from scripts.top.words import ago, num_bytes, seconds
from shared.messages.micro import MicroPing
from shared.overview.overview import Overview
from tests.support.ended import finished, gateway_report, instance_report, node_report, refused

NOW_S = 100.0


def lines_of(overview: Overview, look: Look | None = None, height: int | None = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=24, highlight=False)
    with console.capture() as captured:
        console.print(draw(overview, look or Look(), NOW_S, 80, height))
    return captured.get().rstrip("\n").split("\n")


def cluster(num_nodes: int = 2, num_requests: int = 5) -> Overview:
    overview = Overview()
    overview.hear(gateway_report(), NOW_S)
    for number in range(num_nodes):
        overview.hear(node_report(f"node-{number}"), NOW_S)
        overview.hear(instance_report("prefill", f"prefill-{number}"), NOW_S)
        overview.hear(instance_report("decode", f"decode-{number}"), NOW_S)
    pings = [
        MicroPing(name="x", id="x", metadata={"role": role, "id": role})
        for role in ("conductor", "cache-index")
    ]
    overview.note_answers(pings, NOW_S)
    for number in range(1, num_requests + 1):
        ttft_s = 0.1 * (num_requests - number + 1)
        overview.note_ended(
            "gateway-1", "gi", NOW_S - 50 + number, finished(number, ttft_s=ttft_s, local_tokens=64)
        )
    return overview


def test_a_small_cluster_fits_with_its_requests() -> None:
    lines = lines_of(cluster())
    assert len(lines) <= 24
    text = "\n".join(lines)
    assert "healthy" in lines[0]
    assert "prompt tokens: 36 % computed  64 % local" in text
    assert "prefill-1→decode-1" in text
    assert "q end  s sort (newest)" in lines[-1]


@pytest.mark.parametrize("num_nodes", [0, 1, 5, 100])
def test_any_number_of_nodes_leaves_room_for_requests(num_nodes: int) -> None:
    overview = cluster(num_nodes, num_requests=50)
    overview.note_ended("gateway-1", "gi", NOW_S - 1, refused(99))
    lines = lines_of(overview)
    assert len(lines) <= 24
    text = "\n".join(lines)
    assert "r50" in text
    assert "1 refused: overloaded" in text
    assert ("more nodes" in text) == (num_nodes > 2)


def test_what_is_missing_comes_first() -> None:
    overview = cluster(num_nodes=3)
    overview.hear(instance_report("prefill", "prefill-0", state="draining"), NOW_S)
    overview.hear(instance_report("prefill", "prefill-1", state="starting"), NOW_S)
    lines = lines_of(overview)
    assert lines[0].rstrip().endswith("2 problems")
    assert lines[1].rstrip() == "! prefill-0 is draining"
    assert lines[2].rstrip() == "! prefill-1 is starting"


def test_requests_are_sorted_as_is_asked() -> None:
    def order(name: str) -> list[str]:
        lines = lines_of(cluster(), Look(order=name), height=None)
        return [line.split()[0] for line in lines if line.startswith("r")]

    assert order("newest") == ["r5", "r4", "r3", "r2", "r1"]
    assert order("ttft") == ["r1", "r2", "r3", "r4", "r5"]


def test_the_sort_key_goes_round() -> None:
    look = Look()
    seen = []
    for _ in ORDERS:
        seen.append(look.order)
        look.next_order()
    assert seen == list(ORDERS)
    assert look.order == "newest"


def test_nothing_yet_says_what_to_do() -> None:
    assert any("moonpool chat" in line for line in lines_of(cluster(num_requests=0)))


def test_names_are_no_markup_and_no_control_codes() -> None:
    overview = cluster(num_requests=0)
    overview.note_ended(
        "gateway-1", "gi", NOW_S, finished(1, client_id="[red]x[/]\x1b[2J", local_tokens=1)
    )
    text = "\n".join(lines_of(overview, height=None))
    assert "[red]x[/]" in text
    assert "\x1b[2J" not in text


def test_numbers_fit_their_columns() -> None:
    assert [seconds(one) for one in (None, 0, 0.0012, 0.25, 9.876, 123.4)] == [
        "–", "0", "1.2ms", "250ms", "9.88s", "123s",
    ]  # fmt: skip
    assert [num_bytes(one) for one in (0, 999, 1_500, 250e6)] == ["0B", "999B", "1.5kB", "250MB"]
    assert [ago(one) for one in (-1, 59, 61, 7_300)] == ["0s", "59s", "1m", "2h"]
