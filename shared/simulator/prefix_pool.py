"""A pool reduced to what decides its hits: which blocks it holds, prefix-closed, under a policy.

It drives the policies as the real pool of a node does, without slots, holds of others, generations
and events, which cost time and change no hit where one request comes after the other.
"""

from collections.abc import Sequence

from shared.kv.eviction.base import EvictionPolicy
from shared.kv.ids import BlockKey, Slot


class PrefixPool:
    """Blocks are named by small numbers that stand for their slots too."""

    def __init__(self, capacity_blocks: int, policy: EvictionPolicy) -> None:
        if capacity_blocks < 1:
            raise ValueError(f"capacity_blocks: must be at least 1, is {capacity_blocks}")
        self._capacity = capacity_blocks
        self._policy = policy
        self._children: dict[int, int] = {}
        self._parents: dict[int, int | None] = {}

    def __len__(self) -> int:
        return len(self._children)

    def num_leading(self, chain: Sequence[int]) -> int:
        """Leading blocks that are here; the walk ends at the first miss. Touches nothing."""
        children = self._children
        for count, block in enumerate(chain):
            if block not in children:
                return count
        return len(chain)

    def use(self, chain: Sequence[int]) -> int:
        """One request: its leading blocks are used, the others stored. Returns how many hit."""
        num_hits = self.num_leading(chain)
        # The longest prefix that fits, for no block may stay without its parent.
        kept = chain[: max(num_hits, min(len(chain), self._capacity))]
        tail = chain[num_hits - 1] if num_hits else None
        if tail is not None and not self._children[tail]:
            self._policy.withdraw(Slot(tail))
        for block in reversed(chain[:num_hits]):  # the root is the most recent
            self._policy.used(Slot(block))
        self._make_room(len(kept) - num_hits, tail)
        self._store(kept[num_hits:], tail)
        self._policy.ended([Slot(block) for block in kept])
        if kept and not self._children[kept[-1]]:
            self._policy.offer(Slot(kept[-1]))
        return num_hits

    def _store(self, blocks: Sequence[int], parent: int | None) -> None:
        for block in blocks:
            self._children[block] = 0
            self._parents[block] = parent
            if parent is not None:
                self._children[parent] += 1
            self._policy.stored(Slot(block), key_of(block))
            parent = block

    def _make_room(self, num_blocks: int, tail: int | None) -> None:
        children, parents, policy = self._children, self._parents, self._policy
        while len(children) + num_blocks > self._capacity:
            victim = policy.victim()
            assert victim is not None, "a chain longer than the pool is cut before"
            policy.removed(victim)
            del children[victim]
            parent = parents.pop(victim)
            if parent is not None:
                children[parent] -= 1
                if not children[parent] and parent != tail:
                    policy.offer(Slot(parent))


def key_of(block: int) -> BlockKey:
    """A key for a block that has only a number."""
    return BlockKey(block.to_bytes(16, "little"))
