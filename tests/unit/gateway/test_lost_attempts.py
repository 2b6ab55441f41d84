"""Attempts whose place was not heard of: said for a while, and not too many."""

from services.gateway.lost_attempts import KEEP_S, MAX_ATTEMPTS, LostAttempts


def test_each_is_said_for_a_while() -> None:
    lost = LostAttempts()
    lost.note("a/0", 0.0)
    lost.note("b/0", 1.0)
    assert lost.current(KEEP_S - 0.1) == ["a/0", "b/0"]
    assert lost.current(KEEP_S + 0.1) == ["b/0"]
    assert lost.current(KEEP_S + 1.1) == []


def test_of_many_the_latest_are_said() -> None:
    lost = LostAttempts()
    for number in range(MAX_ATTEMPTS + 3):
        lost.note(f"r{number}/0", 0.0)
    current = lost.current(0.0)
    assert len(current) == MAX_ATTEMPTS
    assert current[0] == "r3/0"
