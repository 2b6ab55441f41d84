"""Hints that come before their request are few and short-lived."""

from shared.worker.early_hints import KEEP_S, MAX_PER_REQUEST, MAX_REQUESTS, EarlyHints


def test_hints_wait_for_their_request() -> None:
    hints: EarlyHints[int] = EarlyHints()
    hints.keep("a", 1, 0.0)
    hints.keep("a", 2, 0.1)
    assert hints.take("a") == [1, 2]
    assert hints.take("a") == []


def test_hints_are_bounded_in_number_and_age() -> None:
    hints: EarlyHints[int] = EarlyHints()
    for number in range(MAX_PER_REQUEST + 5):
        hints.keep("a", number, 0.0)
    assert len(hints.take("a")) == MAX_PER_REQUEST
    for number in range(MAX_REQUESTS + 5):
        hints.keep(f"r{number}", number, 1.0)
    assert len(hints) == MAX_REQUESTS
    assert hints.take("r0") == []
    hints.expire(1.0 + KEEP_S)
    assert len(hints) == 0
