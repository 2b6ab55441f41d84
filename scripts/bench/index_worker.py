"""Measures the mirror of the index in a process of its own: the same chains as the peer's."""

import random
import resource
import time
from typing import Any

from services.cache_index.mirror import Mirror
from services.cache_index.node_registry import NodeLease
from shared.kv.ids import KEY_BYTES, SEGMENT_BLOCKS
from shared.messages.envelope import decode, encode
from shared.messages.index import RemovedRun, ResidencyEvent, StoredRun

ROUND_MATCHES = 2_000
ROOT = b"r" * KEY_BYTES
LEASE_S = 1e9
PAGE_BYTES = resource.getpagesize()


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


class OwnMirror:
    def __init__(self, num_blocks: int, chain_blocks: int, num_nodes: int, seed: int) -> None:
        rng = random.Random(seed)
        length = KEY_BYTES * chain_blocks
        self._chains = [rng.randbytes(length) for _ in range(num_blocks // chain_blocks)]
        holders = [rng.sample(range(num_nodes), rng.randint(1, 3)) for _ in self._chains]
        self._rng = rng
        self._seqs = [0] * (num_nodes + 1)
        before = rss_bytes()
        self._mirror = Mirror()
        for node in range(num_nodes + 1):
            lease = NodeLease(f"n{node}", "1", ROOT, 1, "e", LEASE_S)
            self._mirror.see_node(lease, None, 0.0)
        for chain, nodes in zip(self._chains, holders, strict=True):
            for node in nodes:
                self._mirror.on_event(decode(self._stored(node, chain), ResidencyEvent))
        while not self._mirror.view.sweep(1 << 16):  # as a cache-index does in the background
            continue
        self.bytes_per_block = (rss_bytes() - before) / num_blocks

    def match(self, kind: str) -> float:
        """Seconds of a match."""
        asked = [self._asked(kind) for _ in range(ROUND_MATCHES)]
        start_s = time.perf_counter()
        for chain in asked:
            self._mirror.match(ROOT, chain, 1.0)
        return (time.perf_counter() - start_s) / len(asked)

    def events(self, count: int) -> float:
        """Seconds of a block in events that store and remove whole chains, decoding included."""
        node = len(self._seqs) - 1
        chains = [self._rng.choice(self._chains) for _ in range(count)]
        prepared = [
            event
            for chain in chains
            for event in (self._stored(node, chain), self._removed(node, chain))
        ]
        start_s = time.perf_counter()
        for event in prepared:
            self._mirror.on_event(decode(event, ResidencyEvent))
        seconds = time.perf_counter() - start_s
        return seconds / sum(2 * len(chain) // KEY_BYTES for chain in chains)

    def _asked(self, kind: str) -> bytes:
        chain = self._rng.choice(self._chains)
        kept = {"full": len(chain), "half": len(chain) // 2, "miss": 0}[kind]
        return chain[:kept] + self._rng.randbytes(len(chain) - kept)

    def _stored(self, node: int, chain: bytes) -> bytes:
        return self._event(
            node, stored=[StoredRun(start=0, head=chain[:16], parent=b"", keys=chain)]
        )

    def _removed(self, node: int, chain: bytes) -> bytes:
        heads = b"".join(
            chain[at : at + KEY_BYTES] * SEGMENT_BLOCKS
            for at in range(0, len(chain), KEY_BYTES * SEGMENT_BLOCKS)
        )
        return self._event(node, removed=[RemovedRun(heads=heads[: len(chain)], keys=chain)])

    def _event(self, node: int, **changes: Any) -> bytes:
        self._seqs[node] += 1
        return encode(
            ResidencyEvent(
                node=f"n{node}", incarnation="1", root=ROOT, seq=self._seqs[node], **changes
            )
        )


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own = OwnMirror(**settings)
    return (
        {"version": "this tree", "bytes_per_block": own.bytes_per_block},
        {"match": own.match, "events": own.events},
    )
