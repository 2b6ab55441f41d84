"""Measures NVIDIA Dynamo's radix tree, in its own environment. Imports nothing of moonpool."""

import importlib.metadata
import json
import random
import resource
import time
from typing import Any

from dynamo._core import RadixTree

ROUND_MATCHES = 2_000
PAGE_BYTES = resource.getpagesize()


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


class Tree:
    """The chains of the index bench: the same random bytes, as Dynamo's 64-bit hashes."""

    def __init__(self, num_blocks: int, chain_blocks: int, num_nodes: int, seed: int) -> None:
        rng = random.Random(seed)
        self._num_nodes = num_nodes
        packed = [rng.randbytes(16 * chain_blocks) for _ in range(num_blocks // chain_blocks)]
        self._chains = [self._hashes(one) for one in packed]
        holders = [rng.sample(range(num_nodes), rng.randint(1, 3)) for _ in packed]
        self._rng = rng
        self._event_id = 0
        before = rss_bytes()
        self._tree = RadixTree()
        for chain, nodes in zip(self._chains, holders, strict=True):
            for node in nodes:
                self._tree.apply_event(node, self._stored(chain))
        self.bytes_per_block = (rss_bytes() - before) / num_blocks

    def match(self, kind: str) -> float:
        """Seconds of a match."""
        asked = [self._asked(kind) for _ in range(ROUND_MATCHES)]
        start_s = time.perf_counter()
        for chain in asked:
            self._tree.find_matches(chain)
        return (time.perf_counter() - start_s) / len(asked)

    def events(self, count: int) -> float:
        """Seconds of a block in events that store and remove whole chains."""
        chains = [self._rng.choice(self._chains) for _ in range(count)]
        node = self._num_nodes
        prepared = [
            event for chain in chains for event in (self._stored(chain), self._removed(chain))
        ]
        start_s = time.perf_counter()
        for event in prepared:
            self._tree.apply_event(node, event)
        seconds = time.perf_counter() - start_s
        return seconds / sum(2 * len(chain) for chain in chains)

    def _asked(self, kind: str) -> list[int]:
        chain = self._rng.choice(self._chains)
        kept = {"full": len(chain), "half": len(chain) // 2, "miss": 0}[kind]
        return chain[:kept] + self._hashes(self._rng.randbytes(16 * (len(chain) - kept)))

    @staticmethod
    def _hashes(packed: bytes) -> list[int]:
        words = [packed[at : at + 8] for at in range(0, len(packed), 16)]
        return [int.from_bytes(word, "little") >> 1 for word in words]

    def _stored(self, chain: list[int]) -> bytes:
        blocks = [{"block_hash": one, "tokens_hash": one} for one in chain]
        return self._event({"stored": {"parent_hash": None, "blocks": blocks}})

    def _removed(self, chain: list[int]) -> bytes:
        return self._event({"removed": {"block_hashes": chain[::-1]}})

    def _event(self, data: dict[str, Any]) -> bytes:
        self._event_id += 1
        return json.dumps({"event_id": self._event_id, "data": data, "dp_rank": 0}).encode()


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tree = Tree(**settings)
    version = f"ai-dynamo-runtime {importlib.metadata.version('ai-dynamo-runtime')}"
    return (
        {"version": version, "bytes_per_block": tree.bytes_per_block},
        {"match": tree.match, "events": tree.events},
    )
