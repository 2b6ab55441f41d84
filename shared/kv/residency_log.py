"""What changed in the readable set since the last event, as numbered events. Sends nothing.

Changes that cancel out within one event are left out, so stored and removed never share a key.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.kv.block_tree import BlockPlace
from shared.kv.ids import BlockKey

MAX_EVENT_BLOCKS = 16_384


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Consecutive blocks of one chain."""

    start: int
    head: BlockKey
    parent: BlockKey | None
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class ResidencyChange:
    """One event. `removed` are (head, key), every block after those below it."""

    seq: int
    stored: tuple[StoredBlocks, ...]
    removed: tuple[tuple[BlockKey, BlockKey], ...]


class ResidencyLog:
    """Collects changes; `seq` is the number of the last event that was drained."""

    def __init__(self) -> None:
        self.seq = 0
        self._stored: dict[BlockKey, BlockPlace] = {}
        self._removed: dict[BlockKey, BlockKey] = {}

    @property
    def is_empty(self) -> bool:
        return not self._stored and not self._removed

    def stored(self, places: Iterable[BlockPlace]) -> None:
        for place in places:
            if self._removed.pop(place.key, None) is None:
                self._stored[place.key] = place

    def removed(self, blocks: Iterable[tuple[BlockKey, BlockKey]]) -> None:
        """(key, head of its index segment) of each, every block after those below it."""
        if not self._stored:
            self._removed.update(blocks)
            return
        for key, head in blocks:
            if self._stored.pop(key, None) is None:
                self._removed[key] = head

    def drain(self, max_blocks: int = MAX_EVENT_BLOCKS) -> ResidencyChange | None:
        """The next event, None when nothing changed. Call until None for all of it."""
        if self.is_empty:
            return None
        removed = [(self._removed.pop(key), key) for key in _first(self._removed, max_blocks)]
        stored = [self._stored.pop(key) for key in _first(self._stored, max_blocks - len(removed))]
        self.seq += 1
        return ResidencyChange(self.seq, tuple(runs_of(stored)), tuple(removed))


class SilentLog(ResidencyLog):
    """Of a pool whose changes nobody hears of."""

    def stored(self, places: Iterable[BlockPlace]) -> None:
        """Does not even look at them."""

    def removed(self, blocks: Iterable[tuple[BlockKey, BlockKey]]) -> None:
        """As `stored`."""


def runs_of(places: Iterable[BlockPlace]) -> list[StoredBlocks]:
    """Blocks joined where one follows the other in its chain, parents before children.

    A run does not cross into another index segment: one head stands for all of its blocks.
    """
    runs: list[list[BlockPlace]] = []
    open_runs: dict[BlockKey, list[BlockPlace]] = {}
    for place in sorted(places, key=lambda each: each.index):
        run = None if place.parent is None else open_runs.get(place.parent)
        if run is not None and run[-1].head == place.head:
            del open_runs[run[-1].key]
            run.append(place)
        else:
            run = [place]
            runs.append(run)
        open_runs[place.key] = run
    return [
        StoredBlocks(run[0].index, run[0].head, run[0].parent, tuple(each.key for each in run))
        for run in runs
    ]


def _first(keys: Iterable[BlockKey], count: int) -> list[BlockKey]:
    return [key for _, key in zip(range(count), keys, strict=False)]
