import io

import pytest
from rich.console import Console

from scripts.bench.bars import Bar, Relation, all_measured_ok, judged, not_measured, table_of


@pytest.mark.parametrize(
    ("value", "relation", "ok"),
    [
        (2.0, ">=", True),
        (1.99, ">=", False),
        (2.0, "<=", True),
        (2.01, "<=", False),
        (2.0, "<", False),
        (1.99, "<", True),
    ],
)
def test_a_value_is_judged_by_its_goal(value: float, relation: Relation, ok: bool) -> None:
    bar = judged("speed", value, relation, 2.0, "x")
    assert bar.ok is ok
    assert bar.as_json() == {
        "name": "speed",
        "value": value,
        "unit": "x",
        "goal": f"{relation} 2",
        "ok": ok,
    }


def test_a_bar_without_its_peer_says_so_and_is_not_ok() -> None:
    bar = not_measured("speed", ">=", 2.0, "x", why="the peer is absent")
    assert not bar.ok
    assert bar.value is None
    assert "the peer is absent" in bar.as_json()["note"]


def test_only_measured_bars_decide_the_verdict() -> None:
    good = judged("good", 3.0, ">=", 2.0, "x")
    bad = judged("bad", 1.0, ">=", 2.0, "x")
    open_bar = not_measured("open", ">=", 2.0, "x", why="absent")
    assert all_measured_ok([good, open_bar])
    assert not all_measured_ok([good, bad, open_bar])
    assert not all_measured_ok([open_bar]), "nothing was measured, so nothing is shown"


def test_the_table_shows_every_bar_and_takes_notes_literally() -> None:
    console = Console(width=120, file=io.StringIO())
    bars = [
        judged("fast", 3.14159, ">=", 2.0, "x", note="of [red]12[/] s"),
        Bar("open", None, "x", ">= 2", False, "not measured: absent"),
    ]
    console.print(table_of(bars, title="bars"))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "3.142" in shown
    assert "of [red]12[/] s" in shown
    assert "not measured: absent" in shown
