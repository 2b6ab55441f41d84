"""What an operator, or the conductor for one, asks of this node."""

from collections.abc import Awaitable, Callable
from typing import Any

from services.transfer.node import Node
from services.transfer.tiers import Tiers
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.transfer import (
    DropReply,
    DropRequest,
    FlushReply,
    FlushRequest,
    NodeDrain,
    NodeDrainReply,
    PinReply,
    PinRequest,
    ReplicateReply,
    ReplicateRequest,
)
from shared.runtime.errors import ServiceError
from shared.runtime.micro import Endpoint


class OperatorHandlers:
    def __init__(
        self,
        node: Node,
        tiers: Callable[[], Tiers | None],
        check_not_draining: Callable[[], None],
        drain: Callable[[NodeDrain], Awaitable[NodeDrainReply]],
    ) -> None:
        self._node = node
        self._tiers = tiers
        self._check_not_draining = check_not_draining
        self._drain = drain

    def endpoints(self) -> list[Endpoint[Any, Any]]:
        def subject(operation: str) -> str:
            return subjects.transfer(self._node.ref.id, operation)

        return [
            Endpoint(
                "pin",
                subject("pin"),
                PinRequest,
                PinReply,
                self.pin,
                "Keep the leading run of some keys in DRAM for a time",
            ),
            Endpoint(
                "drop",
                subject("drop"),
                DropRequest,
                DropReply,
                self.drop,
                "Forget a block and everything after it",
            ),
            Endpoint(
                "replicate",
                subject("replicate"),
                ReplicateRequest,
                ReplicateReply,
                self.replicate,
                "Bring the leading run of some keys here from another node",
            ),
            Endpoint(
                "flush",
                subject("flush"),
                FlushRequest,
                FlushReply,
                self.flush,
                "Forget every block that nobody holds",
            ),
            Endpoint(
                "drain",
                subject("drain"),
                NodeDrain,
                NodeDrainReply,
                self._drain,
                "Take no new workers and hand over what is worth it; or end that",
            ),
        ]

    async def pin(self, request: PinRequest) -> PinReply:
        self._check_not_draining()
        return await self._formatted().pins.pin(request)

    async def drop(self, request: DropRequest) -> DropReply:
        return self._formatted().drop(BlockKey(request.key))

    async def flush(self, request: FlushRequest) -> FlushReply:
        return await self._formatted().flush(is_ssd=request.is_ssd)

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        self._check_not_draining()
        try:
            split(request.keys)
        except ValueError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, f"keys: {error}", field="keys") from None
        return await self._formatted().replicator.replicate(request)

    def _formatted(self) -> Tiers:
        tiers = self._tiers()
        if tiers is None:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"node {self._node.ref.id} has no model yet: no worker has attached",
                is_retryable=True,
            )
        return tiers
