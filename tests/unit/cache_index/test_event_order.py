"""Events are applied once, in order, and never across a gap."""

import itertools

from services.cache_index.event_order import MAX_KEPT, MAX_KEPT_BLOCKS, EventOrder


def test_events_in_order_are_ready_at_once() -> None:
    order: EventOrder[str] = EventOrder()
    assert order.accept(1, "a") == ["a"]
    assert order.accept(2, "b") == ["b"]
    assert not order.is_behind


def test_every_order_of_arrival_gives_the_same_order_of_application() -> None:
    for arrival in itertools.permutations(range(1, 6)):
        order: EventOrder[int] = EventOrder()
        applied = [event for seq in arrival for event in order.accept(seq, seq)]
        assert applied == [1, 2, 3, 4, 5]
        assert not order.is_behind


def test_a_duplicate_is_applied_once() -> None:
    order: EventOrder[str] = EventOrder()
    order.accept(1, "a")
    assert order.accept(1, "a") == []
    assert order.accept(3, "c") == []
    assert order.accept(3, "c") == []
    assert order.accept(2, "b") == ["b", "c"]
    assert order.duplicates_total == 2


def test_a_lost_last_event_shows_when_the_node_says_its_sequence() -> None:
    order: EventOrder[str] = EventOrder()
    order.accept(1, "a")
    order.hear(2)
    assert order.is_behind


def test_events_that_came_during_an_inventory_are_applied_on_top_of_it() -> None:
    order: EventOrder[int] = EventOrder()
    order.accept(1, 1)
    order.accept(3, 3)  # 2 is lost
    order.begin_recording()
    for seq in (4, 6, 5):
        order.accept(seq, seq)
    assert order.restart_at(4) == [5, 6]
    assert order.last_seq == 6
    assert not order.is_behind


def test_an_inventory_older_than_what_was_applied_meanwhile_replays_it() -> None:
    order: EventOrder[int] = EventOrder()
    order.begin_recording()
    assert order.accept(1, 1) == [1]
    assert order.accept(2, 2) == [2]
    assert order.restart_at(0) == [1, 2]


def test_a_gap_within_the_recording_stays_a_gap() -> None:
    order: EventOrder[int] = EventOrder()
    order.begin_recording()
    order.accept(7, 7)
    assert order.restart_at(5) == []
    assert order.is_behind


def test_more_events_than_can_be_kept_void_the_inventory() -> None:
    order: EventOrder[int] = EventOrder()
    order.begin_recording()
    for seq in range(1, MAX_KEPT + 2):
        order.accept(seq, seq)
    assert order.restart_at(0) is None


def test_what_was_kept_in_vain_takes_no_room_from_the_next_inventory() -> None:
    """A gap, and inventories that fail while large events come, until one succeeds."""
    order: EventOrder[int] = EventOrder()
    seq = 2
    order.accept(seq, seq)  # 1 is missing
    large = MAX_KEPT_BLOCKS // 4
    for _ in range(8):
        order.begin_recording()
        seq += 1
        order.accept(seq, seq, large)
        order.stop_recording()
    order.begin_recording()
    seq += 1
    order.accept(seq, seq, large)
    assert order.restart_at(seq - 1) == [seq]
    assert not order.is_behind
