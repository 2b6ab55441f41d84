"""Copies layers of a peer's slots into a worker's own WRITING slots. All of them or an error.

The request's handle is the right to read the peer's private and unfinished slots; that they still
are what was meant is told by their generation.
"""

from collections import Counter

from services.transfer.flow import Flow, Urgency
from services.transfer.node_pool import NodePool
from services.transfer.peers import Peers
from services.transfer.traffic import Traffic
from shared.kv.ids import Slot
from shared.messages.common import ErrorCode
from shared.messages.pool import Pull, PullReply
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.transport.base import PeerLost, Slice
from shared.transport.router import Moved, Router
from shared.transport.slices import valid_ranges


class Puller:
    """Streams KV from the node of a prefill to the node of its decode."""

    def __init__(self, pool: NodePool, router: Router, peers: Peers, flow: Flow) -> None:
        self._pool = pool
        self._router = router
        self._peers = peers
        self._flow = flow
        self._written: Counter[int] = Counter()
        self.traffic = Traffic()

    @property
    def bytes_streamed_total(self) -> int:
        return self.traffic.num_bytes()

    def is_writing(self, slot: Slot) -> bool:
        """A pull still copies into it: its bytes are not final."""
        return slot in self._written

    async def pull(self, owner: str, request: Pull) -> PullReply:
        started_s = monotonic_s()
        deadline_s = started_s + request.remaining_ms / 1000
        slices = self._slices(owner, request)
        num_bytes = sum(part.num_bytes for part in slices)
        written = Counter({item.slot for item in request.items})
        self._written += written
        try:
            moved = await self._read(request, slices, num_bytes, deadline_s)
        except ServiceError as error:
            self.traffic.failed("stream", error)
            raise
        finally:
            self._written -= written
        seconds = monotonic_s() - started_s
        self.traffic.moved("stream", {moved.transport: num_bytes}, seconds)
        return PullReply(moved_bytes=num_bytes, seconds=seconds, transport=moved.transport)

    async def _read(
        self, request: Pull, slices: list[Slice], num_bytes: int, deadline_s: float
    ) -> Moved:
        node, evidence, started_s = request.node, self._peers.evidence, monotonic_s()
        asked_s: float | None = None
        try:
            peer = await self._peers.find(node, self._pool, deadline_s - monotonic_s())
            left_s = deadline_s - monotonic_s()
            async with self._flow.turn_within(left_s, node.id, num_bytes, Urgency.STREAM):
                asked_s = monotonic_s()
                timeout_s = max(deadline_s - monotonic_s(), 0.0)
                moved = await self._router.fetch(peer, slices, timeout_s=timeout_s)
        except PeerLost as error:
            self._peers.forget(node)
            evidence.bad(node, error, monotonic_s() - started_s)
            raise ServiceError(ErrorCode.PEER_LOST, str(error), is_retryable=True) from None
        except TimeoutError as error:
            if asked_s is not None:  # else it waited here, for its turn
                evidence.bad(node, error, monotonic_s() - asked_s)
            raise ServiceError(
                ErrorCode.DEADLINE,
                f"node {node.id} was not read within {request.remaining_ms} ms",
                is_retryable=True,
            ) from None
        except ServiceError as error:
            evidence.bad(node, error, monotonic_s() - started_s)
            if error.code in (ErrorCode.NO_INSTANCE, ErrorCode.DEADLINE):
                raise ServiceError(
                    ErrorCode.PEER_LOST, f"node {node.id}: {error.message}", is_retryable=True
                ) from None
            raise
        if moved.num_slices < len(slices):
            lost = slices[moved.num_slices].peer_slot
            raise ServiceError(
                ErrorCode.KV_LOST, f"slot {lost} of node {node.id} is in another use by now"
            )
        evidence.good(node, monotonic_s() - asked_s, num_bytes)
        return moved

    def _slices(self, owner: str, request: Pull) -> list[Slice]:
        slices: list[Slice] = []
        for number, item in enumerate(request.items):
            if not self._pool.blocks.is_writing(owner, request.handle, Slot(item.slot)):
                raise ServiceError(
                    ErrorCode.BAD_REQUEST,
                    f"items.{number}.slot: {item.slot} is not a WRITING slot of {request.handle}",
                    field=f"items.{number}.slot",
                )
            try:
                ranges = valid_ranges(
                    self._pool.geometry, item.valid_tokens, item.first_layer, item.end_layer
                )
            except ValueError as error:
                raise ServiceError(
                    ErrorCode.BAD_REQUEST, f"items.{number}.{error}", field=f"items.{number}"
                ) from None
            slices += [
                Slice(item.peer_slot, item.peer_generation, item.slot, offset, num_bytes)
                for offset, num_bytes in ranges
            ]
        return slices
