"""This node's registration with the index: made, renewed, made again. Sends no residency."""

import asyncio
import logging
from collections.abc import Callable

from shared.messages import subjects
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.index import NodeLeaseReply, RegisterNode, RenewNode
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.transfer.index")
RENEW_INTERVAL_S = 1.0


class IndexSession:
    """Keeps the node's lease at the index; `run` is a task of the service."""

    def __init__(
        self, bus: Bus, node: NodeRef, root: bytes, seq: Callable[[], int], timeout_s: float
    ) -> None:
        self._bus = bus
        self._node = node
        self._root = root
        self._seq = seq
        self._timeout_s = timeout_s
        self._epoch: str | None = None
        self._is_away_said = False

    async def run(self) -> None:
        """For ever; ServiceError VOID_INCARNATION when another process took the node's name."""
        while True:
            try:
                await self._step()
                if self._is_away_said:
                    log.info("the index answers again")
                    self._is_away_said = False
            except ServiceError as error:
                if error.code == ErrorCode.VOID_INCARNATION:
                    raise
                if not self._is_away_said:
                    log.warning("the index does not answer, serving without it: %s", error)
                    self._is_away_said = True
            await asyncio.sleep(RENEW_INTERVAL_S)

    async def _step(self) -> None:
        if self._epoch is None:
            await self._register()
            return
        renew = RenewNode(node=self._node.id, incarnation=self._node.incarnation, seq=self._seq())
        reply = await self._bus.request(
            subjects.INDEX_RENEW_NODE, renew, NodeLeaseReply, timeout_s=self._timeout_s
        )
        if reply.index_epoch != self._epoch:
            log.info("the index started anew, registering again")
            await self._register()
            return
        self._check_current(reply)

    async def _register(self) -> None:
        register = RegisterNode(
            node=self._node.id, incarnation=self._node.incarnation, root=self._root
        )
        reply = await self._bus.request(
            subjects.INDEX_REGISTER_NODE, register, NodeLeaseReply, timeout_s=self._timeout_s
        )
        self._check_current(reply)
        self._epoch = reply.index_epoch
        log.info("registered with the index as node number %d", reply.number)

    def _check_current(self, reply: NodeLeaseReply) -> None:
        if not reply.is_current:
            raise ServiceError(
                ErrorCode.VOID_INCARNATION,
                f"another process is node {self._node.id} now; give each transfer its own "
                "MOONPOOL_INSTANCE_ID",
            )
