"""Asks the index how many other nodes hold some blocks. Never waits for long."""

from collections.abc import Sequence

from shared.kv.ids import BlockKey
from shared.messages import subjects
from shared.messages.index import CopiesReply, CopiesRequest
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

TIMEOUT_S = 0.05


class CopiesElsewhere:
    def __init__(self, bus: Bus, node: str, root: bytes) -> None:
        self._bus = bus
        self._node = node
        self._root = root

    async def ask(self, keys: Sequence[BlockKey]) -> Sequence[int] | None:
        """A count for each key; None when there was no answer in time."""
        if not keys:
            return []
        try:
            reply = await self._bus.request(
                subjects.INDEX_COPIES,
                CopiesRequest(root=self._root, node=self._node, keys=b"".join(keys)),
                CopiesReply,
                timeout_s=TIMEOUT_S,
            )
        except ServiceError:
            return None
        return reply.num_copies if len(reply.num_copies) == len(keys) else None
