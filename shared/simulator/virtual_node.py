"""A node in virtual time: the real block pool, and its link.

Each direction of a link is a queue of bytes. A transfer ends when its last byte has passed the
senders and the receiver; bytes flow through, so the slower end counts and not the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.kv.block_pool import BlockPool
from shared.kv.eviction.base import EvictionPolicy
from shared.kv.ids import BlockKey
from shared.kv.pool_values import Refusal, SealItem
from shared.kv.residency_log import SilentLog

OWNER = "simulated"


@dataclass(slots=True)
class Direction:
    bytes_per_s: float
    free_s: float = 0.0
    bytes_total: int = 0

    def carry(self, num_bytes: float, now_s: float) -> float:
        """When the last byte has passed."""
        self.free_s = max(self.free_s, now_s) + num_bytes / self.bytes_per_s
        self.bytes_total += int(num_bytes)
        return self.free_s

    def backlog_bytes(self, now_s: float) -> int:
        return int(max(0.0, self.free_s - now_s) * self.bytes_per_s)


class VirtualNode:
    def __init__(
        self, node_id: str, num_blocks: int, policy: EvictionPolicy, bytes_per_s: float
    ) -> None:
        self.id = node_id
        self.pool = BlockPool(num_blocks, policy, log=SilentLog())
        self.sends = Direction(bytes_per_s)
        self.receives = Direction(bytes_per_s)
        self._num_blocks = num_blocks

    def num_leading(self, keys: Sequence[BlockKey]) -> int:
        return self.pool.depth(keys)

    def hold(self, handle: str, keys: Sequence[BlockKey]) -> int:
        """Lease the leading blocks; how many."""
        return len(self.pool.lease(OWNER, handle, keys)) if keys else 0

    def store(self, handle: str, keys: Sequence[BlockKey], upto: int) -> None:
        """Blocks before `upto` that are not here become readable, as far as there is room."""
        here = self.num_leading(keys[:upto])
        wanted = min(upto - here, self.pool.num_available(OWNER, self._num_blocks))
        if wanted > 0:
            given = self.pool.allocate(OWNER, handle, wanted, self._num_blocks)
            assert not isinstance(given, Refusal), "what is available is given"
            items = [
                SealItem(block.slot, block.generation, 0, keys[here + at])
                for at, block in enumerate(given)
            ]
            self.pool.seal(OWNER, handle, here, keys, items)

    def release(self, handle: str) -> None:
        self.pool.release(OWNER, handle)


def transfer(
    sources: Sequence[VirtualNode], target: VirtualNode, num_bytes: int, now_s: float, base_s: float
) -> float:
    """Striped over the sources; when it is all there."""
    share = num_bytes / len(sources)
    ends_s = [source.sends.carry(share, now_s) for source in sources]
    return max(target.receives.carry(num_bytes, now_s), *ends_s) + base_s
