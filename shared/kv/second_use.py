"""Which blocks were used by more than one request: those are worth a place in a slower tier."""

from collections.abc import Callable, Iterator, Sequence

from shared.kv.ids import BlockKey

MIN_PRUNED = 1_024


class SecondUse:
    """Remembers the first user of each readable block, which had a second one, and their order."""

    def __init__(self, is_readable: Callable[[BlockKey], bool]) -> None:
        self._is_readable = is_readable
        self._first_user: dict[BlockKey, str | None] = {}
        """None: it had a second one."""
        self._prune_at = MIN_PRUNED

    def __len__(self) -> int:
        return len(self._first_user)

    def used(self, user: str, keys: Sequence[BlockKey]) -> int:
        """A user stored or read the leading blocks of a chain; how many of them are proven now."""
        num_proven = 0
        for count, key in enumerate(keys, start=1):
            first = self._first_user.pop(key, user)
            self._first_user[key] = first if first == user else None
            if first != user:
                num_proven = count
        if len(self._first_user) > self._prune_at:
            self._prune()
        return num_proven

    def is_proven(self, key: BlockKey) -> bool:
        return self._first_user.get(key, "") is None

    def recent(self) -> Iterator[BlockKey]:
        """Keys, the last used first; some may be readable no more."""
        return reversed(self._first_user)

    def _prune(self) -> None:
        kept = {key: user for key, user in self._first_user.items() if self._is_readable(key)}
        self._first_user = kept
        self._prune_at = max(MIN_PRUNED, 2 * len(kept))
