"""Promises: sums, refusals, expiry."""

from shared.worker.promises import Limits, Promise, Promises

LIMITS = Limits(max_requests=3, max_tokens=1000, max_blocks=8)


def promise(handle: str, num_tokens: int = 100, expires_s: float | None = 2.0) -> Promise:
    return Promise(handle, "g", "g1", num_tokens, 1, expires_s)


def test_a_promise_counts_until_it_ends() -> None:
    promises = Promises(LIMITS)
    promises.give(promise("a", 400))
    assert (promises.tokens, promises.reserved_tokens, promises.free_tokens) == (400, 400, 600)
    assert promises.end("a") is not None
    assert (promises.tokens, promises.reserved_tokens, len(promises)) == (0, 0, 0)
    assert promises.end("a") is None


def test_a_run_turns_a_reservation_into_work_that_does_not_expire() -> None:
    promises = Promises(LIMITS)
    promises.give(promise("a"))
    assert promises.extend("a")
    assert promises.expire(100.0) == []
    assert (promises.tokens, promises.reserved_tokens) == (100, 0)
    assert not promises.extend("unknown")


def test_reservations_without_a_run_expire_at_their_end() -> None:
    promises = Promises(LIMITS)
    promises.give(promise("a", expires_s=2.0))
    promises.give(promise("b", expires_s=3.0))
    assert promises.expire(1.9) == []
    assert [over.handle for over in promises.expire(2.0)] == ["a"]
    assert promises.tokens == 100


def test_a_gateway_ends_its_own_reservations_and_no_work() -> None:
    promises = Promises(LIMITS)
    for handle in ("a", "b", "c"):
        promises.give(promise(handle))
    promises.extend("b")
    assert promises.end_reservations("g", "another", ["a"]) == []
    assert promises.end_reservations("h", "g1", ["a"]) == []
    ended = promises.end_reservations("g", "g1", ["a", "b", "unknown"])
    assert [one.handle for one in ended] == ["a"]
    assert (promises.tokens, promises.reserved_tokens, len(promises)) == (200, 100, 2)


def test_the_refusal_says_what_is_short() -> None:
    promises = Promises(LIMITS)
    promises.give(promise("a", 900))
    assert promises.refusal("b", 100, 1) == ""
    assert promises.refusal("b", 101, 1) == "needs room for 101 tokens, 100 are free"
    assert promises.refusal("b", 2000, 1) == "needs room for 2000 tokens, there is 1000 in all"
    assert promises.refusal("b", 1, 9) == "needs 9 blocks, this instance may hold 8"
    promises.give(promise("b", 1))
    promises.give(promise("c", 1))
    assert promises.refusal("d", 1, 1) == "3 requests are promised already"


def test_promising_the_same_attempt_again_counts_it_once() -> None:
    promises = Promises(LIMITS)
    promises.give(promise("a", 900))
    assert promises.refusal("a", 950, 1) == ""
    promises.give(promise("a", 950))
    assert (promises.tokens, len(promises)) == (950, 1)


def test_answers_that_grow_over_their_promises_may_hold_more_than_there_is() -> None:
    promises = Promises(LIMITS)
    promises.give(promise("a", 600))
    promises.give(promise("b", 400))
    assert promises.missing_tokens == 0
    promises.raise_to("a", 650)
    assert (promises.missing_tokens, promises.free_tokens) == (50, 0)
    promises.end("b")
    assert promises.missing_tokens == 0
