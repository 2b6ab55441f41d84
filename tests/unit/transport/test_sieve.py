"""Which connections are given up when there are too many."""

from collections.abc import Callable

from shared.transport.sieve import Sieve


def filled(keys: str, max_items: int) -> Sieve[str, str]:
    sieve: Sieve[str, str] = Sieve(max_items)
    for key in keys:
        sieve.put(key, key.upper())
    return sieve


def nobody(_: str) -> bool:
    return False


def busy(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


def test_the_oldest_unused_goes_first() -> None:
    sieve = filled("abcd", 3)
    assert sieve.evict(nobody) == ["A"]
    assert len(sieve) == 3
    assert sieve.evict(nobody) == []


def test_what_was_used_is_spared_once() -> None:
    sieve = filled("abcd", 3)
    assert sieve.get("a") == "A"
    assert sieve.evict(nobody) == ["B"]
    sieve.put("e", "E")
    assert sieve.evict(nobody) == ["C"]
    sieve.put("f", "F")
    assert sieve.evict(nobody) == ["D"]


def test_looking_without_using_spares_nothing() -> None:
    sieve = filled("abcd", 3)
    assert sieve.peek("a") == "A"
    assert sieve.evict(nobody) == ["A"]


def test_what_is_busy_and_what_is_new_stays() -> None:
    sieve = filled("abc", 1)
    assert sieve.evict(busy("A")) == ["B"]
    assert sieve.evict(busy("A")) == []
    assert (sieve.peek("a"), sieve.peek("c")) == ("A", "C")
    assert sieve.evict(nobody) == ["A"]


def test_all_used_means_the_oldest_goes() -> None:
    sieve = filled("abcd", 3)
    for key in "abcd":
        sieve.get(key)
    assert sieve.evict(nobody) == ["A"]


def test_taken_out_by_hand_it_is_gone_and_the_order_goes_on() -> None:
    sieve = filled("abcde", 4)
    assert sieve.evict(nobody) == ["A"]
    assert sieve.pop("b") == "B"
    assert sieve.pop("b") is None
    sieve.put("f", "F")
    sieve.put("g", "G")
    assert sieve.evict(nobody) == ["C"]
    assert sorted(sieve.clear()) == ["D", "E", "F", "G"]
    assert len(sieve) == 0
