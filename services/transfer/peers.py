"""The other nodes as this one sees them: descriptions by incarnation, leases, releases.

Sends and checks messages; moves no bytes.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.transfer.node_pool import NodePool
from services.transfer.read_evidence import ReadEvidence
from shared.kv.ids import BlockKey
from shared.kv.lease import HOLDER_SHARE
from shared.messages import subjects
from shared.messages.common import Empty, ErrorCode, NodeRef, Ok
from shared.messages.transfer import (
    DescribeReply,
    LeaseRelease,
    LeaseReply,
    LeaseRequest,
    LocalDescriptor,
    RdmaDescriptor,
    TcpDescriptor,
)
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.telemetry import about
from shared.transport.base import Peer, RdmaAddress, TcpAddress
from shared.transport.segment import SegmentInfo

log = logging.getLogger("moonpool.transfer.peers")
MAX_KNOWN_PEERS = 256
MIN_TTL_MS = 500
MAX_TTL_MS = 60_000


@dataclass(frozen=True, slots=True)
class PeerLease:
    """Blocks held for us at another node; stop reading at `read_until_s` of our own clock."""

    lease_id: str
    slots: list[int]
    generations: list[int]
    checksums: list[int]
    read_until_s: float


class Peers:
    """Descriptions are kept per incarnation: a node that restarts is described anew."""

    def __init__(
        self, bus: Bus, own: NodeRef, timeout_s: float, evidence: ReadEvidence | None = None
    ) -> None:
        self.evidence = evidence or ReadEvidence()
        self._bus = bus
        self._own = own
        self._timeout_s = timeout_s
        self._known: OrderedDict[tuple[str, str], Peer] = OrderedDict()

    async def find(self, node: NodeRef, pool: NodePool, remaining_s: float) -> Peer:
        """How to read from that very incarnation; ServiceError PEER_LOST or FORMAT_MISMATCH."""
        if node == self._own:
            return Peer(node.id, node.incarnation, _info(pool.descriptor))
        key = (node.id, node.incarnation)
        peer = self._known.get(key)
        if peer is None:
            peer = await self._describe(node, pool, remaining_s)
            self._known[key] = peer
            if len(self._known) > MAX_KNOWN_PEERS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return peer

    def forget(self, node: NodeRef) -> None:
        self._known.pop((node.id, node.incarnation), None)

    def lost(self, peer: Peer, reason: str) -> None:
        """A transport found it dead: whoever needs the node asks it anew."""
        if self._known.pop((peer.node, peer.incarnation), None) is not None:
            log.info("node %s is lost over %s", peer.node, reason)

    async def lease(
        self,
        node: NodeRef,
        root: bytes,
        chain: Sequence[BlockKey],
        start: int,
        remaining_s: float,
    ) -> PeerLease:
        """Hold the leading run of `chain[start:]` there for about as long as we have."""
        ttl_ms = int(remaining_s / HOLDER_SHARE * 1000)
        request = LeaseRequest(
            holder=self._own,
            incarnation=node.incarnation,
            root=root,
            keys=b"".join(chain),
            start=start,
            ttl_ms=min(max(ttl_ms, MIN_TTL_MS), MAX_TTL_MS),
            request_id=about.current().request_id,
            traceparent=about.current().traceparent,
        )
        asked_s = monotonic_s()
        reply = await self._bus.request(
            subjects.transfer(node.id, "lease"),
            request,
            LeaseReply,
            timeout_s=min(self._timeout_s, remaining_s),
        )
        count = len(reply.slots)
        num_wanted = len(chain) - start
        if count > num_wanted or not count == len(reply.generations) == len(reply.checksums):
            raise ServiceError(
                ErrorCode.INTERNAL, f"node {node.id} leased {count} of {num_wanted} blocks wrongly"
            )
        # Counted from the question, not from the answer: our clock may only be too early.
        read_until_s = asked_s + HOLDER_SHARE * reply.ttl_ms / 1000
        return PeerLease(
            reply.lease_id, reply.slots, reply.generations, reply.checksums, read_until_s
        )

    async def release(self, node: NodeRef, lease_id: str, bad_keys: bytes = b"") -> None:
        """A peer that does not hear it ends the lease by its time."""
        try:
            await self._bus.request(
                subjects.transfer(node.id, "release"),
                LeaseRelease(lease_id=lease_id, bad_keys=bad_keys),
                Ok,
                timeout_s=self._timeout_s,
            )
        except ServiceError:
            self.forget(node)

    async def _describe(self, node: NodeRef, pool: NodePool, remaining_s: float) -> Peer:
        reply = await self._bus.request(
            subjects.transfer(node.id, "describe"),
            Empty(),
            DescribeReply,
            timeout_s=min(self._timeout_s, remaining_s),
        )
        if reply.node != node:
            raise ServiceError(
                ErrorCode.PEER_LOST,
                f"node {node.id} is incarnation {reply.node.incarnation} now, "
                f"{node.incarnation} is gone",
            )
        if reply.root != pool.root or reply.geometry != pool.geometry:
            raise ServiceError(
                ErrorCode.FORMAT_MISMATCH,
                f"node {node.id} holds KV of another model",
                field="root" if reply.root != pool.root else "geometry",
            )
        return peer_of(reply)


def peer_of(reply: DescribeReply) -> Peer:
    """All ways that the node offers."""
    tcp, rdma = reply.tcp, reply.rdma
    return Peer(
        reply.node.id,
        reply.node.incarnation,
        local=None if reply.local is None else _info(reply.local),
        tcp=None if tcp is None else TcpAddress(tcp.host, tcp.port, tcp.capability),
        rdma=None
        if rdma is None
        else RdmaAddress(
            worker_address=rdma.worker_address,
            table_address=rdma.table_address,
            table_rkey=rdma.table_rkey,
            data_address=rdma.data_address,
            data_rkey=rdma.data_rkey,
            num_slots=rdma.num_slots,
            block_bytes=rdma.block_bytes,
        ),
    )


def tcp_descriptor(address: TcpAddress | None) -> TcpDescriptor | None:
    if address is None:
        return None
    return TcpDescriptor(host=address.host, port=address.port, capability=address.capability)


def rdma_descriptor(address: RdmaAddress | None) -> RdmaDescriptor | None:
    if address is None:
        return None
    return RdmaDescriptor(
        worker_address=address.worker_address,
        table_address=address.table_address,
        table_rkey=address.table_rkey,
        data_address=address.data_address,
        data_rkey=address.data_rkey,
        num_slots=address.num_slots,
        block_bytes=address.block_bytes,
    )


def _info(descriptor: LocalDescriptor) -> SegmentInfo:
    return SegmentInfo(
        path=Path(descriptor.path),
        nonce=descriptor.nonce,
        num_slots=descriptor.num_slots,
        block_bytes=descriptor.block_bytes,
        data_offset=descriptor.data_offset,
    )
