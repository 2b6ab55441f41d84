"""A node that leaves asks others to take what is hot or nowhere else. In bounded time and bytes;
nothing that goes wrong here holds up the end.
"""

import asyncio
import logging
from collections.abc import Sequence

from services.transfer.node import FormattedNode
from services.transfer.tiers import Tiers
from shared.kv.ids import BlockKey
from shared.messages import subjects
from shared.messages.common import Empty, NodeRef
from shared.messages.conductor import StateReply
from shared.messages.index import MatchReply, MatchRequest
from shared.messages.reports import NodeReport
from shared.messages.transfer import ReplicateReply, ReplicateRequest
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.transfer.drain")
ASK_TIMEOUT_S = 1.0
MAX_CHAINS = 256


class Leaver:
    def __init__(self, bus: Bus, own: NodeRef, node: FormattedNode, tiers: Tiers) -> None:
        self._bus = bus
        self._own = own
        self._node = node
        self._tiers = tiers

    async def hand_over(self, max_bytes: int, timeout_s: float) -> int:
        """Bytes that others took."""
        deadline_s = monotonic_s() + timeout_s
        chains = self._tiers.worth_keeping(max_bytes // self._node.pool.geometry.block_bytes)
        if not chains:
            return 0
        takers = await self._takers()
        if not takers:
            log.info("no other node takes over what is here")
            return 0
        moved_bytes = 0
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + timeout_s):
                for number, chain in enumerate(chains[:MAX_CHAINS]):
                    if not takers:
                        break  # all have refused
                    moved_bytes += await self._hand(chain, takers, number, deadline_s)
        except TimeoutError:
            log.info("the time to hand blocks over has passed")
        log.info("%d bytes of KV went to other nodes", moved_bytes)
        return moved_bytes

    async def _hand(
        self, chain: Sequence[BlockKey], takers: list[NodeReport], number: int, deadline_s: float
    ) -> int:
        """To the node that has most of it; nothing when all of it is on another one."""
        depths = await self._depths(b"".join(chain))
        if max(depths.values(), default=0) >= len(chain):
            return 0
        # Of equals in turn, so that one node does not get all.
        order = takers[number % len(takers) :] + takers[: number % len(takers)]
        for taker in sorted(order, key=lambda node: -depths.get(node.id, 0)):
            remaining_ms = int((deadline_s - monotonic_s()) * 1000)
            if remaining_ms < 1:
                return 0
            request = ReplicateRequest(
                keys=b"".join(chain), source=self._own, remaining_ms=remaining_ms
            )
            try:
                reply = await self._bus.request(
                    subjects.transfer(taker.id, "replicate"),
                    request,
                    ReplicateReply,
                    timeout_s=remaining_ms / 1000 + ASK_TIMEOUT_S,
                )
            except ServiceError as error:
                log.info("node %s takes nothing: %s", taker.id, error)
                takers.remove(taker)
                continue
            return reply.moved_bytes
        return 0

    async def _depths(self, chain: bytes) -> dict[str, int]:
        """How much of it other nodes have; nothing when no index says."""
        request = MatchRequest(root=self._node.pool.root, chain=chain, exclude_nodes=[self._own.id])
        try:
            reply = await self._bus.request(
                subjects.INDEX_MATCH, request, MatchReply, timeout_s=ASK_TIMEOUT_S
            )
        except ServiceError:
            return {}
        return {match.node.id: match.num_blocks for match in reply.nodes}

    async def _takers(self) -> list[NodeReport]:
        """Other nodes of this model, those with the most room first."""
        try:
            state = await self._bus.request(
                subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=ASK_TIMEOUT_S
            )
        except ServiceError:
            return []
        others = [
            node
            for node in state.nodes
            if node.id != self._own.id
            and node.state == "ready"
            and node.root == self._node.pool.root
        ]
        return sorted(others, key=lambda node: -node.slots_free)
