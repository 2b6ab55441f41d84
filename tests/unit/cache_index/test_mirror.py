"""The mirror: incarnations inherit nothing, gaps are seen, fills take the place of doubt."""

import pytest

from services.cache_index.mirror import Mirror
from services.cache_index.node_registry import NodeLease
from shared.kv.ids import KEY_BYTES
from shared.messages.index import RemovedRun, ResidencyEvent, StoredRun

ROOT = b"r" * 16
CHAIN = b"".join(bytes([index]) * 16 for index in range(1, 101))


def lease(node: str = "n1", incarnation: str = "a", registration: int = 1) -> NodeLease:
    return NodeLease(node, incarnation, ROOT, registration, "epoch", 3.0)


def keys(start: int, end: int) -> bytes:
    return CHAIN[start * KEY_BYTES : end * KEY_BYTES]


def run(start: int, end: int) -> StoredRun:
    return StoredRun(
        start=start, head=keys(0, 1), parent=keys(start - 1, start) if start else b"",
        keys=keys(start, end),
    )  # fmt: skip


def stored(seq: int, start: int, end: int, incarnation: str = "a") -> ResidencyEvent:
    return ResidencyEvent(
        node="n1", incarnation=incarnation, root=ROOT, seq=seq, stored=[run(start, end)]
    )


def removed(seq: int, start: int, end: int) -> ResidencyEvent:
    heads = keys(0, 1) * (end - start)
    return ResidencyEvent(
        node="n1", incarnation="a", root=ROOT, seq=seq,
        removed=[RemovedRun(heads=heads, keys=keys(start, end))],
    )  # fmt: skip


def depths(mirror: Mirror, now_s: float = 1.0) -> dict[str, int]:
    return {match.node: match.num_blocks for match in mirror.match(ROOT, CHAIN, now_s)}


@pytest.fixture
def mirror() -> Mirror:
    mirror = Mirror()
    mirror.see_node(lease(), None, 0.0)
    return mirror


def test_events_show_in_matches(mirror: Mirror) -> None:
    assert len(mirror.on_event(stored(1, 0, 10))) == 1
    assert depths(mirror) == {"n1": 10}
    mirror.on_event(removed(2, 4, 10))
    assert depths(mirror) == {"n1": 4}
    mirror.check_integrity()


def test_a_node_whose_lease_ended_is_not_returned_and_a_renewal_brings_it_back(
    mirror: Mirror,
) -> None:
    mirror.on_event(stored(1, 0, 10))
    assert depths(mirror, now_s=2.9) == {"n1": 10}
    assert depths(mirror, now_s=3.0) == {}
    mirror.see_node(lease(), 1, 5.0)
    assert depths(mirror, now_s=7.0) == {"n1": 10}


def test_a_new_incarnation_inherits_nothing_and_late_events_of_the_old_one_are_void(
    mirror: Mirror,
) -> None:
    mirror.on_event(stored(1, 0, 10))
    assert mirror.see_node(lease(incarnation="b", registration=2), None, 1.0) == "new"
    assert depths(mirror) == {}
    assert mirror.on_event(stored(2, 0, 20)) == []
    assert mirror.late_events_total == 1
    mirror.on_event(stored(1, 0, 3, incarnation="b"))
    assert depths(mirror) == {"n1": 3}
    mirror.check_integrity()


def test_a_late_word_of_an_old_registration_changes_nothing(mirror: Mirror) -> None:
    mirror.see_node(lease(incarnation="b", registration=2), None, 1.0)
    assert mirror.see_node(lease(incarnation="a", registration=1), 9, 1.5) == "stale"
    mirror.on_event(stored(1, 0, 3, incarnation="b"))
    assert depths(mirror) == {"n1": 3}


def test_a_gap_is_seen_and_an_inventory_with_the_events_on_top_mends_it(mirror: Mirror) -> None:
    mirror.on_event(stored(1, 0, 10))
    mirror.on_event(removed(3, 5, 10))  # 2 is lost
    assert mirror.is_behind("n1")
    assert mirror.gaps_total == 1
    fill = mirror.begin_fill("n1")
    assert fill is not None
    assert mirror.begin_fill("n1") is None
    mirror.fill_runs(fill, [run(0, 30)])
    mirror.on_event(removed(4, 20, 30))
    assert depths(mirror) == {"n1": 10}
    assert mirror.finish_fill(fill, 3) == [removed(4, 20, 30)]
    assert depths(mirror) == {"n1": 20}
    assert not mirror.is_behind("n1")
    mirror.check_integrity()


def test_a_run_whose_parent_is_not_held_is_no_hit_but_a_reason_to_resync(mirror: Mirror) -> None:
    mirror.on_event(stored(1, 0, 4))
    mirror.on_event(stored(2, 6, 9))
    assert depths(mirror) == {"n1": 4}
    assert mirror.is_behind("n1")


def test_a_fill_is_void_when_the_node_starts_anew_meanwhile(mirror: Mirror) -> None:
    fill = mirror.begin_fill("n1")
    assert fill is not None
    mirror.see_node(lease(incarnation="b", registration=2), None, 1.0)
    assert not mirror.fill_runs(fill, [run(0, 5)])
    assert mirror.finish_fill(fill, 1) is None
    assert depths(mirror) == {}
    mirror.check_integrity()


def test_an_abandoned_fill_leaves_the_old_view(mirror: Mirror) -> None:
    mirror.on_event(stored(1, 0, 4))
    fill = mirror.begin_fill("n1")
    assert fill is not None
    mirror.fill_runs(fill, [run(0, 9)])
    mirror.abandon_fill(fill)
    assert depths(mirror) == {"n1": 4}
    assert mirror.begin_fill("n1") is not None
    mirror.check_integrity()


def test_matches_are_ordered_by_depth_then_name() -> None:
    mirror = Mirror()
    for name, depth in (("c", 5), ("a", 5), ("b", 9)):
        mirror.see_node(lease(node=name), None, 0.0)
        event = stored(1, 0, depth).model_copy(update={"node": name})
        mirror.on_event(event)
    assert [match.node for match in mirror.match(ROOT, CHAIN, 1.0)] == ["b", "a", "c"]
