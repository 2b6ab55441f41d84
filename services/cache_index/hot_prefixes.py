"""The prefixes that are used most, by decayed use. Pure; time is given.

A match is counted once, at the longest of the lengths 1, 2, 4, 8... that it reaches: O(1). What
uses a longer prefix uses the shorter ones too; they are summed up when somebody asks. Of what does
not fit, the least used are folded into their next shorter prefix, so no use is lost to the root.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.kv.ids import KEY_BYTES
from shared.messages.index import PrefixUse

HALF_LIFE_S = 60.0
TAU_S = HALF_LIFE_S / math.log(2)
MAX_TRACKED = 2_048
KEPT = 1_024
MAX_WEIGHT = 1e12
"""Weights grow with time instead of counts shrinking; beyond this all are scaled down."""
EXPLAINED = 0.9
"""A prefix whose uses are so much one longer prefix' is not worth naming beside it."""
MAX_BATCH = 256


@dataclass(slots=True)
class _Tracked:
    root: bytes
    keys: bytes
    """At the lengths 1, 2, 4... up to its own."""
    weight: float = 0.0
    unsent: float = 0.0


@dataclass(frozen=True, slots=True)
class Hot:
    root: bytes
    key: bytes
    num_blocks: int
    uses_per_s: float


@dataclass(slots=True)
class _Sum:
    root: bytes
    keys: bytes
    weight: float = 0.0
    largest_part: float = 0.0


@dataclass(slots=True)
class HotPrefixes:
    _tracked: dict[bytes, _Tracked] = field(default_factory=dict)
    _base_s: float | None = None

    def use(self, root: bytes, chain: bytes, num_blocks: int, now_s: float) -> None:
        """A prompt matched so many leading blocks of its chain."""
        if num_blocks < 1:
            return
        weight = self._weight(now_s)
        length = 1 << (num_blocks.bit_length() - 1)
        key = chain[(length - 1) * KEY_BYTES : length * KEY_BYTES]
        tracked = self._tracked.get(key)
        if tracked is None:
            tracked = self._track(root, key, _rungs(chain, length))
        tracked.weight += weight
        tracked.unsent += 1.0

    def hear(self, prefixes: Iterable[PrefixUse], now_s: float) -> None:
        """What another cache-index was asked for."""
        weight = self._weight(now_s)
        for used in prefixes:
            if not used.keys or len(used.keys) % KEY_BYTES:
                continue
            key = used.keys[-KEY_BYTES:]
            tracked = self._tracked.get(key) or self._track(used.root, key, used.keys)
            tracked.weight += used.uses * weight

    def take_unsent(self) -> list[PrefixUse]:
        """What was counted here and not told yet, the most used first; the rest comes later."""
        waiting = sorted(
            (one for one in self._tracked.values() if one.unsent), key=lambda one: -one.unsent
        )
        batch = []
        for one in waiting[:MAX_BATCH]:
            batch.append(PrefixUse(root=one.root, keys=one.keys, uses=one.unsent))
            one.unsent = 0.0
        return batch

    def top(self, limit: int, now_s: float) -> list[Hot]:
        """The most used; one that is nearly all a longer one's is left out."""
        per_s = 1.0 / (TAU_S * self._weight(now_s))
        sums: dict[bytes, _Sum] = {}
        for one in self._tracked.values():
            for rung in range(len(one.keys) // KEY_BYTES):
                key = one.keys[rung * KEY_BYTES : (rung + 1) * KEY_BYTES]
                total = sums.get(key)
                if total is None:
                    total = sums[key] = _Sum(one.root, one.keys[: (rung + 1) * KEY_BYTES])
                total.weight += one.weight
        for total in sums.values():
            shorter = sums.get(total.keys[-2 * KEY_BYTES : -KEY_BYTES])
            if shorter is not None:
                shorter.largest_part = max(shorter.largest_part, total.weight)
        named = [t for t in sums.values() if t.largest_part < EXPLAINED * t.weight]
        named.sort(key=lambda total: (-total.weight, total.keys))
        return [
            Hot(
                total.root,
                total.keys[-KEY_BYTES:],
                1 << (len(total.keys) // KEY_BYTES - 1),
                total.weight * per_s,
            )
            for total in named[:limit]
        ]

    def __len__(self) -> int:
        return len(self._tracked)

    def _track(self, root: bytes, key: bytes, keys: bytes) -> _Tracked:
        if len(self._tracked) >= MAX_TRACKED:
            self._fold()
        tracked = self._tracked[key] = _Tracked(root, keys)
        return tracked

    def _fold(self) -> None:
        """Keep the most used; the others count for their next shorter prefix from now on."""
        by_weight = sorted(self._tracked.items(), key=lambda item: item[1].weight)
        for key, one in by_weight[: len(by_weight) - KEPT]:
            del self._tracked[key]
            shorter = self._tracked.get(one.keys[-2 * KEY_BYTES : -KEY_BYTES])
            if shorter is not None:
                shorter.weight += one.weight
                shorter.unsent += one.unsent
            elif len(one.keys) > KEY_BYTES:
                keys = one.keys[:-KEY_BYTES]
                self._tracked[keys[-KEY_BYTES:]] = _Tracked(one.root, keys, one.weight, one.unsent)

    def _weight(self, now_s: float) -> float:
        """Of a use that happens now. May scale all down: ask first, add then."""
        if self._base_s is None:
            self._base_s = now_s
        weight = math.exp((now_s - self._base_s) / TAU_S)
        if weight > MAX_WEIGHT:
            for one in self._tracked.values():
                one.weight /= weight
            self._base_s = now_s
            return 1.0
        return weight


def _rungs(chain: bytes, length: int) -> bytes:
    """The keys at lengths 1, 2, 4... up to this one."""
    return b"".join(
        chain[((1 << rung) - 1) * KEY_BYTES : (1 << rung) * KEY_BYTES]
        for rung in range(length.bit_length())
    )
