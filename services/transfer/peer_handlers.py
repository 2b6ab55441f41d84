"""What other nodes and the index ask of this node over NATS: thin, message to pool to reply."""

import secrets

from services.transfer.expiry_timer import ExpiryTimer
from services.transfer.node import Node
from services.transfer.node_pool import NodePool
from services.transfer.peers import rdma_descriptor, tcp_descriptor
from services.transfer.residency_publisher import ResidencyPublisher
from services.transfer.tiers import Tiers
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey
from shared.kv.lease import Lease, LeaseTable
from shared.kv.pool_values import HeldBlock
from shared.messages import subjects
from shared.messages.common import Empty, ErrorCode, Ok
from shared.messages.index import InventoryReply, InventoryRequest
from shared.messages.transfer import DescribeReply, LeaseRelease, LeaseReply, LeaseRequest
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.micro import Endpoint
from shared.telemetry import tracing

MAX_LEASED_SHARE = 0.75
"""The part of the pool that one other node can hold at once."""


class PeerHandlers:
    """Owns the leases of other nodes and the timer that ends them."""

    def __init__(self, node: Node, publisher: ResidencyPublisher) -> None:
        self._node = node
        self._publisher = publisher
        self._leases = LeaseTable()
        self._timer = ExpiryTimer(self._leases, self._end)
        self.granted_total = 0
        self.tiers: Tiers | None = None
        """Of the formatted node."""

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    @property
    def expired_total(self) -> int:
        """Leases that their holder did not release in time."""
        return self._timer.expired_total

    def endpoints(
        self,
    ) -> list[
        Endpoint[Empty, DescribeReply]
        | Endpoint[LeaseRequest, LeaseReply]
        | Endpoint[LeaseRelease, Ok]
        | Endpoint[InventoryRequest, InventoryReply]
    ]:
        node = self._node.ref.id
        return [
            Endpoint(
                "describe",
                subjects.transfer(node, "describe"),
                Empty,
                DescribeReply,
                self.describe,
                "What this node holds and how peers can read it",
            ),
            Endpoint(
                "lease",
                subjects.transfer(node, "lease"),
                LeaseRequest,
                LeaseReply,
                self.lease,
                "Hold the leading run of some keys for another node, for a time",
            ),
            Endpoint(
                "release",
                subjects.transfer(node, "release"),
                LeaseRelease,
                Ok,
                self.release,
                "End a lease early",
            ),
            Endpoint(
                "inventory",
                subjects.transfer(node, "inventory"),
                InventoryRequest,
                InventoryReply,
                self.inventory,
                "A page of the blocks that are readable here",
            ),
        ]

    async def describe(self, _: Empty) -> DescribeReply:
        formatted = self._node.formatted
        if formatted is None:
            return DescribeReply(node=self._node.ref, root=b"")
        pool = formatted.pool
        return DescribeReply(
            node=self._node.ref,
            root=pool.root,
            geometry=pool.geometry,
            local=pool.descriptor if formatted.transports.has_local else None,
            tcp=tcp_descriptor(formatted.transports.tcp),
            rdma=rdma_descriptor(formatted.transports.rdma),
        )

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        if request.incarnation != self._node.ref.incarnation:
            raise ServiceError(
                ErrorCode.VOID_INCARNATION,
                f"incarnation: {request.incarnation} of node {self._node.ref.id} is gone",
                field="incarnation",
            )
        formatted = self._node.formatted
        if formatted is None or formatted.pool.root != request.root:
            raise ServiceError(
                ErrorCode.FORMAT_MISMATCH,
                f"root: node {self._node.ref.id} holds no KV of it",
                field="root",
            )
        try:
            keys = split(request.keys)
        except ValueError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, f"keys: {error}", field="keys") from None
        self._check_is_from_root(formatted.pool, keys)
        lease_id = secrets.token_hex(8)
        owner = f"peer:{request.holder.id}:{request.holder.incarnation}"
        cap = max(1, int(formatted.pool.blocks.counts.total * MAX_LEASED_SHARE))
        with tracing.span("lease", "server", {"peer": request.holder.id}) as span:
            held = await self._hold(formatted.pool, owner, lease_id, keys, cap, request)
            span.set({"blocks": len(held)})
        if held:
            self.granted_total += 1
            self._leases.grant(lease_id, owner, monotonic_s(), request.ttl_ms / 1000)
            self._timer.set()
        return LeaseReply(
            lease_id=lease_id,
            slots=[block.slot for block in held],
            generations=[block.generation for block in held],
            checksums=[block.checksum for block in held],
            ttl_ms=request.ttl_ms,
        )

    def _check_is_from_root(self, pool: NodePool, keys: list[BlockKey]) -> None:
        """Whoever brings blocks keeps them under their parents: it must know all of them."""
        if not keys:
            return
        ssd = None if self.tiers is None else self.tiers.ssd_blocks
        place = pool.blocks.place(keys[0]) or (None if ssd is None else ssd.place(keys[0]))
        if place is not None and place.index:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"keys: the first is block {place.index} of its chain; name the chain from its "
                "first block on",
                field="keys",
            )

    async def _hold(
        self,
        pool: NodePool,
        owner: str,
        lease_id: str,
        keys: list[BlockKey],
        cap: int,
        request: LeaseRequest,
    ) -> list[HeldBlock]:
        """The run from `start` on, with what the SSD has of it; who reads verifies."""
        wanted = keys[request.start :]
        held = pool.blocks.lease(owner, lease_id, wanted, cap)
        if self.tiers is None:
            return held
        try:
            deadline_s = monotonic_s() + request.wait_ms / 1000
            await self.tiers.promoter.bring(owner, lease_id, keys, cap, deadline_s)
        except BaseException:
            pool.blocks.release(owner, lease_id)
            raise
        if held:
            pool.on_used(owner, lease_id, keys[: request.start + len(held)])
        return pool.blocks.lease(owner, lease_id, wanted, cap)

    async def release(self, request: LeaseRelease) -> Ok:
        formatted = self._node.formatted
        if formatted is None:
            return Ok()
        # The holder's word is a hint: the node looks at its own bytes, also when the lease is over.
        try:
            await formatted.pool.recheck(split(request.bad_keys))
        except ValueError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, str(error), field="bad_keys") from None
        finally:
            lease = self._leases.release(request.lease_id)
            if lease is not None:
                self._end(lease)
        return Ok()

    async def inventory(self, request: InventoryRequest) -> InventoryReply:
        formatted = self._node.formatted
        if formatted is None:
            return InventoryReply(incarnation=self._node.ref.incarnation, root=b"", seq=0)
        return await self._publisher.inventory(formatted.pool, request.cursor)

    def stop(self) -> None:
        self._timer.stop()

    def _end(self, lease: Lease) -> None:
        formatted = self._node.formatted
        if formatted is not None:
            formatted.pool.blocks.release(lease.holder, lease.lease_id)
            formatted.pool.on_change()  # more can go
