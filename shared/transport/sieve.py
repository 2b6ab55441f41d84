"""A small bounded map that forgets what was not used of late (SIEVE). Evicts only when asked."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Sieve(Generic[K, V]):
    """Newest last. The hand goes from old to new and spares what was used since it came by."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: OrderedDict[K, V] = OrderedDict()
        self._used: set[K] = set()
        self._hand: K | None = None

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> V | None:
        """Counts as a use."""
        if key in self._items:
            self._used.add(key)
        return self._items.get(key)

    def peek(self, key: K) -> V | None:
        return self._items.get(key)

    def values(self) -> list[V]:
        """Counts as no use."""
        return list(self._items.values())

    def put(self, key: K, value: V) -> None:
        self.pop(key)
        self._items[key] = value

    def pop(self, key: K) -> V | None:
        self._used.discard(key)
        if key == self._hand:
            self._hand = self._after(key)
        return self._items.pop(key, None)

    def clear(self) -> list[V]:
        values = list(self._items.values())
        self._items.clear()
        self._used.clear()
        self._hand = None
        return values

    def evict(self, is_busy: Callable[[V], bool]) -> list[V]:
        """Take out what is too much; what is busy stays, and so may be too much for a time."""
        evicted: list[V] = []
        while len(self._items) > self._max_items:
            victim = self._victim(is_busy)
            if victim is None:
                break
            value = self.pop(victim)
            assert value is not None
            evicted.append(value)
        return evicted

    def _victim(self, is_busy: Callable[[V], bool]) -> K | None:
        keys = list(self._items)
        newest = keys[-1]
        start = 0 if self._hand is None else keys.index(self._hand)
        # Twice round: the first time may only take the marks away.
        for key in keys[start:] + keys + keys[:start]:
            if key in self._used:
                self._used.discard(key)
            elif key != newest and not is_busy(self._items[key]):
                self._hand = key
                return key
        return None

    def _after(self, key: K) -> K | None:
        keys = list(self._items)
        at = keys.index(key) + 1
        return keys[at] if at < len(keys) else None
