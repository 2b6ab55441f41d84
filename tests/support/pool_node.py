"""A node of the transfer service without sockets and bus: its pool, leases, pins and sessions are
the real ones, other nodes are called directly, and bytes move over the fake transport.
"""

import asyncio
import secrets
from collections.abc import Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

from services.transfer.attachments import Attachments
from services.transfer.fetcher import Fetcher
from services.transfer.flow import Flow
from services.transfer.node import FormattedNode, Node
from services.transfer.node_pool import NodePool
from services.transfer.peer_handlers import PeerHandlers
from services.transfer.peers import PeerLease
from services.transfer.pins import Pins
from services.transfer.promoter import Promoter
from services.transfer.puller import Puller
from services.transfer.read_evidence import ReadEvidence
from services.transfer.replicator import Replicator
from services.transfer.worker_calls import Session, WorkerCalls
from shared.kv.ids import BlockKey, Generation, Slot
from shared.kv.lease import HOLDER_SHARE
from shared.kv.slots import SlotState
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.envelope import Message, encode
from shared.messages.pool import Attach, Call
from shared.messages.transfer import KvGeometry, LeaseRelease, LeaseRequest
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.transport.base import Peer, Slice
from shared.transport.fake import FakePeer, FakeTransport
from shared.transport.opening import Transports
from shared.transport.router import Router
from shared.transport.segment import Segment

ROOT = bytes(16)
PIN_SHARE = 0.5


class CheckedTransport(FakeTransport):
    """Fails the test when a slice lands in a slot that is in another use by then."""

    def __init__(self, pool: NodePool, geometry: KvGeometry) -> None:
        num_slots = pool.segment.info.num_slots
        super().__init__(pool.segment.bytes.reshape(num_slots, geometry.block_bytes))
        self._pool = pool
        self._meant: dict[int, Generation] = {}
        self.num_running = 0
        self.wrong: list[str] = []
        self.damaged: set[int] = set()
        """Own slots whose last slice arrived with a wrong byte."""

    async def _move(self, peer: Peer, slices: Any, timeout_s: float, *, is_write: bool) -> int:
        meant = {part.slot: self._pool.blocks.generation(Slot(part.slot)) for part in slices}
        self._meant |= meant
        self.num_running += 1
        try:
            return await super()._move(peer, slices, timeout_s, is_write=is_write)
        finally:
            self.num_running -= 1
            self._check(meant)

    def _copy(self, memory: FakePeer, part: Slice, *, is_write: bool) -> None:
        self._check({part.slot: self._meant[part.slot]})
        is_flipped = not is_write and memory.slices_read == memory.flips_slice
        super()._copy(memory, part, is_write=is_write)
        self.damaged.discard(part.slot)
        if is_flipped:
            self.damaged.add(part.slot)

    def _check(self, meant: dict[int, Generation]) -> None:
        """Until the call has ended, its slots are those of whoever made it."""
        blocks = self._pool.blocks
        for slot, generation in meant.items():
            is_writing = blocks._slots.is_in(Slot(slot), SlotState.WRITING)
            if not is_writing or blocks.generation(Slot(slot)) != generation:
                self.wrong.append(f"slot {slot} was reused under a live transfer")


class _Peers:
    """The other nodes, called directly: `Peers` without a bus."""

    def __init__(self, own: NodeRef, nodes: dict[str, "PoolNode"]) -> None:
        self._own = own
        self._nodes = nodes
        self.evidence = ReadEvidence()

    async def find(self, node: NodeRef, pool: NodePool, remaining_s: float) -> Peer:
        self._at(node)
        return Peer(node.id, node.incarnation)

    async def lease(
        self, node: NodeRef, root: bytes, chain: list[BlockKey], start: int, remaining_s: float
    ) -> PeerLease:
        asked_s = monotonic_s()
        reply = await self._at(node).handlers.lease(
            LeaseRequest(
                holder=self._own,
                incarnation=node.incarnation,
                root=root,
                keys=b"".join(chain),
                start=start,
                ttl_ms=min(max(int(remaining_s / HOLDER_SHARE * 1000), 1), 60_000),
            )
        )
        until_s = asked_s + HOLDER_SHARE * reply.ttl_ms / 1000
        return PeerLease(reply.lease_id, reply.slots, reply.generations, reply.checksums, until_s)

    async def release(self, node: NodeRef, lease_id: str, bad_keys: bytes = b"") -> None:
        try:
            await self._at(node).handlers.release(
                LeaseRelease(lease_id=lease_id, bad_keys=bad_keys)
            )
        except ServiceError:
            return

    def forget(self, node: NodeRef) -> None:
        return None

    def _at(self, node: NodeRef) -> "PoolNode":
        found = self._nodes.get(node.id)
        if found is None or found.ref != node:
            raise ServiceError(ErrorCode.PEER_LOST, f"{node.id} {node.incarnation} is gone")
        return found


class LooseTasks:
    """Tasks without a group; what went wrong in them is in `errors`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []

    def start_contained(self, work: Coroutine[Any, Any, Any], *, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)


class _Publisher:
    """Nobody listens."""


class PoolNode:
    """One incarnation of a node; `nodes` are those that live now, by name."""

    def __init__(
        self,
        name: str,
        nodes: dict[str, "PoolNode"],
        geometry: KvGeometry,
        num_slots: int,
        threads: Executor,
        tasks: LooseTasks,
    ) -> None:
        self.ref = NodeRef(id=name, incarnation=secrets.token_hex(4))
        self.geometry = geometry
        path = Path(f"/dev/shm/moonpool-node-{secrets.token_hex(6)}.seg")
        segment = Segment.create(path, num_slots=num_slots, block_bytes=geometry.block_bytes)
        path.unlink()
        self.pool = NodePool(ROOT, geometry, segment, cast(Any, threads), lambda: None)
        self.transport = CheckedTransport(self.pool, geometry)
        self.router = Router([self.transport], monotonic_s)
        self.flow = Flow(max_peer_bytes=2 * geometry.block_bytes)
        peers = cast(Any, _Peers(self.ref, nodes))
        fetcher = Fetcher(self.pool, self.ref, self.router, peers, cast(Tasks, tasks), self.flow)
        puller = Puller(self.pool, self.router, peers, self.flow)
        transports = cast(Transports, None)
        self.formatted = FormattedNode(self.pool, transports, self.flow, fetcher, puller)
        self.replicator = Replicator(self.pool, fetcher, self.ref, share=0.5)
        promoter = Promoter(self.pool, None)
        self.pins = Pins(self.pool, promoter, PIN_SHARE)
        node = cast(Node, self)
        self.handlers = PeerHandlers(node, cast(Any, _Publisher()))
        self.calls = WorkerCalls(node, Attachments(), lambda: None)
        self.calls.tiers = cast(Any, self)
        self.promoter = promoter

    async def use_format(self, root: bytes, geometry: KvGeometry) -> FormattedNode:
        return self.formatted

    def can_reach(self, other: "PoolNode") -> FakePeer:
        """The way to another node; what goes wrong on it is set there."""
        memory = FakePeer(
            other.pool.segment.bytes.reshape(-1, self.geometry.block_bytes),
            cast(Any, other.pool.segment.generations),
        )
        self.transport.peers[other.ref.id, other.ref.incarnation] = memory
        return memory

    async def attach(self, instance: str, cap: int) -> "Worker":
        session = self.calls.open()
        worker = Worker(session)
        await worker.ask(
            "attach",
            Attach(
                instance=instance,
                incarnation="1",
                role="both",
                root=ROOT,
                geometry=self.geometry,
                max_slots=cap,
            ),
        )
        return worker

    def stop_timers(self) -> None:
        self.pins.stop()
        self.handlers.stop()

    def check(self) -> None:
        self.pool.blocks.check_integrity()
        assert not self.transport.wrong, self.transport.wrong


class Worker:
    """One attached socket."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def ask(self, operation: Any, message: Message) -> Any:
        return await self.session.call(Call(id=0, operation=operation, body=encode(message)))

    def start_on(
        self, loop: asyncio.AbstractEventLoop, operation: Any, message: Message
    ) -> "asyncio.Task[Any]":
        """A call that other things happen beside."""
        return loop.create_task(self.ask(operation, message))
