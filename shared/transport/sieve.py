"""Which of a few things to give up: SIEVE (NSDI'24) over names. Owns no things.

A hand goes from old to new and takes the first that was not used since the hand passed it.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Sieve(Generic[K]):
    """For some hundreds of names: finding a victim walks over them."""

    def __init__(self) -> None:
        self._order: list[K] = []
        self._used: set[K] = set()
        self._hand = 0

    def add(self, key: K) -> None:
        if key not in self._order:
            self._order.append(key)

    def touch(self, key: K) -> None:
        self._used.add(key)

    def remove(self, key: K) -> None:
        if key not in self._order:
            return
        at = self._order.index(key)
        del self._order[at]
        self._used.discard(key)
        if at < self._hand:
            self._hand -= 1

    def victim(self, may_go: Callable[[K], bool]) -> K | None:
        """The one to give up; it stays until it is removed. None when none may go."""
        if not any(map(may_go, self._order)):
            return None
        while True:
            if self._hand >= len(self._order):
                self._hand = 0
            key = self._order[self._hand]
            if may_go(key) and key not in self._used:
                return key
            self._used.discard(key)
            self._hand += 1
