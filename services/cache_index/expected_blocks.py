"""Blocks that are being computed: where a longer prefix will be, and when. Pure; time is given.

Kept apart from residency: nothing can be read from there yet. An entry ends when its instance says
so, when its time is over, or with its instance or node.
"""

from collections import OrderedDict
from dataclasses import dataclass

from shared.kv import block_keys
from shared.kv.ids import KEY_BYTES
from shared.messages.common import InstanceRef
from shared.messages.index import Expected

MAX_ENTRIES = 8_192
MAX_COMPARED = 256
"""Of those that start alike, so many of the newest are looked at in one match."""


@dataclass(frozen=True, slots=True)
class _Entry:
    instance: InstanceRef
    root: bytes
    chain: bytes
    done_blocks: int
    start_s: float
    eta_s: float
    expires_s: float

    def eta_of(self, num_blocks: int, now_s: float) -> float:
        """Seconds until so many blocks are there: chunks come one after the other."""
        total = len(self.chain) // KEY_BYTES
        share = (num_blocks - self.done_blocks) / max(total - self.done_blocks, 1)
        return max(self.start_s + share * (self.eta_s - self.start_s) - now_s, 0.0)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one instance will have of a chain."""

    instance: InstanceRef
    num_blocks: int
    eta_s: float


class ExpectedBlocks:
    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        """By (instance, handle), oldest first."""
        self._by_start: dict[tuple[bytes, bytes], OrderedDict[tuple[str, str], None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def hear(self, message: Expected, now_s: float) -> None:
        name = (message.instance.id, message.ref.handle)
        known = self._entries.get(name)
        if known is not None:
            self._drop(name)
            if known.instance.incarnation != message.instance.incarnation:
                self._drop_instance(known.instance)
        num_blocks = len(message.chain) // KEY_BYTES
        if message.is_over or message.done_blocks >= num_blocks:
            return
        while len(self._entries) >= MAX_ENTRIES:
            self._drop(next(iter(self._entries)))
        entry = _Entry(
            instance=message.instance,
            root=message.root,
            chain=message.chain[: num_blocks * KEY_BYTES],
            done_blocks=message.done_blocks,
            start_s=now_s + message.start_ms / 1e3,
            eta_s=now_s + max(message.eta_ms, message.start_ms) / 1e3,
            expires_s=now_s + message.ttl_ms / 1e3,
        )
        self._entries[name] = entry
        self._by_start.setdefault(_start_of(entry), OrderedDict())[name] = None

    def match(self, root: bytes, chain: bytes, now_s: float) -> list[Expectation]:
        """By instance, the longest prefix of the chain that it will have; deepest first."""
        names = self._by_start.get((root, chain[:KEY_BYTES]))
        if not names:
            return []
        best: dict[str, Expectation] = {}
        void: list[tuple[str, str]] = []
        for compared, name in enumerate(reversed(names)):
            entry = self._entries[name]
            if entry.expires_s <= now_s:
                void.append(name)
            elif compared < MAX_COMPARED:
                _keep_better(best, entry, block_keys.num_common(entry.chain, chain), now_s)
        for name in void:
            self._drop(name)
        return sorted(best.values(), key=lambda one: (-one.num_blocks, one.eta_s))

    def drop_node(self, node: str) -> None:
        """Another incarnation of the node: its pool is gone, and what was to come with it."""
        for name in [n for n, entry in self._entries.items() if entry.instance.node == node]:
            self._drop(name)

    def expire(self, now_s: float) -> None:
        for name in [n for n, entry in self._entries.items() if entry.expires_s <= now_s]:
            self._drop(name)

    def _drop_instance(self, instance: InstanceRef) -> None:
        for name in [n for n, entry in self._entries.items() if entry.instance == instance]:
            self._drop(name)

    def _drop(self, name: tuple[str, str]) -> None:
        entry = self._entries.pop(name)
        names = self._by_start[_start_of(entry)]
        del names[name]
        if not names:
            del self._by_start[_start_of(entry)]


def _start_of(entry: _Entry) -> tuple[bytes, bytes]:
    return (entry.root, entry.chain[:KEY_BYTES])


def _keep_better(
    best: dict[str, Expectation], entry: _Entry, num_blocks: int, now_s: float
) -> None:
    if num_blocks <= entry.done_blocks:
        return  # what is there already comes as residency
    found = Expectation(entry.instance, num_blocks, entry.eta_of(num_blocks, now_s))
    known = best.get(entry.instance.id)
    if known is None or (found.num_blocks, -found.eta_s) > (known.num_blocks, -known.eta_s):
        best[entry.instance.id] = found
