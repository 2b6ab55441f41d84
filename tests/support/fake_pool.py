"""Pools of nodes inside the test process, with the real BlockPool and real bytes: fast, and able to
fail on demand. They speak as PoolClient does."""

import asyncio

import numpy as np
import xxhash

from services.transfer.slot_line import SlotLine
from shared.kv.block_keys import split
from shared.kv.block_pool import BlockPool
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey, Generation, Slot
from shared.kv.pool_values import Refusal, SealItem
from shared.messages.common import ErrorCode, FetchSource, NodeRef, RequestRef
from shared.messages.pool import (
    AllocateReply,
    Blocks,
    FetchBlocksReply,
    LeaseBlocksReply,
    PullItem,
    PullReply,
    SealBlock,
)
from shared.messages.transfer import KvGeometry
from shared.runtime.errors import ServiceError


class Gate:
    """Holds up the calls of one operation until it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def pass_through(self) -> None:
        self.entered.set()
        await self.open.wait()


class FakeNode:
    """One node: its pool, its memory, and the other nodes it can reach."""

    def __init__(
        self, name: str, geometry: KvGeometry, num_slots: int, peers: dict[str, "FakeNode"]
    ) -> None:
        self.ref = NodeRef(id=name, incarnation=f"{name}-1")
        self.geometry = geometry
        self.generations = np.zeros(num_slots, dtype=np.uint64)
        self.pool = BlockPool(num_slots, LruEviction(), self.generations)
        self.line = SlotLine(self.pool)
        self.memory = bytearray(num_slots * geometry.block_bytes)
        self.bytes = np.frombuffer(self.memory, dtype=np.uint8).reshape(
            num_slots, geometry.num_layers, 2, geometry.block_tokens, geometry.token_bytes
        )
        self.peers = peers
        peers[name] = self
        self.clients: list[FakePool] = []
        self.corrupt_pulls = 0
        """So many pulls bring wrong bytes."""
        self.corrupt_seals = 0
        """So many blocks change a bit after they were sealed."""
        self.pulls: list[PullItem] = []
        self.gates: dict[str, Gate] = {}

    def checksum(self, slot: int, valid_tokens: int) -> int:
        valid = np.ascontiguousarray(self.bytes[slot, :, :, :valid_tokens])
        return xxhash.xxh3_64_intdigest(valid)

    def gate(self, operation: str) -> Gate:
        self.gates[operation] = Gate()
        return self.gates[operation]

    def attach(self, owner: str, cap: int) -> "FakePool":
        client = FakePool(self, owner, cap)
        self.clients.append(client)
        return client

    def lose(self) -> None:
        """The transfer dies: every attachment ends."""
        for client in self.clients:
            client.lost.set()
            self.pool.release_owner(client.owner)

    @property
    def num_taken(self) -> int:
        """Slots and holds of all attachments."""
        counts = self.pool.counts
        return counts.writing + counts.private + counts.held


class FakePool:
    """What a worker sees of its node."""

    def __init__(self, node: FakeNode, owner: str, cap: int) -> None:
        self._node = node
        self.owner = owner
        self._cap = self.max_slots = cap
        self.node = node.ref
        self.num_slots = len(node.generations)
        self.data = memoryview(node.memory)
        self.lost = asyncio.Event()

    async def wait_lost(self) -> None:
        await self.lost.wait()

    async def lease(self, handle: str, keys: bytes) -> Blocks:
        await self._enter("lease")
        run = self._node.pool.lease(self.owner, handle, split(keys))
        return Blocks(
            slots=[block.slot for block in run],
            generations=[block.generation for block in run],
            checksums=[block.checksum for block in run],
        )

    async def hold(self, handle: str, keys: bytes, remaining_ms: int = 8_000) -> LeaseBlocksReply:
        return LeaseBlocksReply(blocks=await self.lease(handle, keys))

    async def fetch(
        self, handle: str, ref: RequestRef, keys: bytes, source: FetchSource, remaining_ms: int
    ) -> FetchBlocksReply:
        await self._enter("fetch")
        chain = split(keys)
        num_local = self._node.pool.num_leading(chain)
        peer = self._node.peers[source.node.id]
        wanted = chain[num_local : source.num_blocks]
        found = [peer.pool.readable(key) for key in wanted]
        moved = 0
        for index, block in enumerate(found, start=num_local):
            taken = self._node.pool.allocate("transfer", handle, 1, self.num_slots)
            if block is None or isinstance(taken, Refusal):
                break
            self._node.bytes[taken[0].slot] = peer.bytes[block.slot]
            item = SealItem(taken[0].slot, taken[0].generation, block.checksum, chain[index])
            self._node.pool.seal("transfer", handle, index, chain, [item])
            moved += self._node.geometry.block_bytes
        blocks = await self.lease(handle, keys)
        self._node.pool.release("transfer", handle)
        return FetchBlocksReply(
            blocks=blocks,
            num_local=num_local,
            fetched_bytes=moved,
            seconds=0.001 if moved else 0.0,
            transport="fake" if moved else "none",
        )

    async def allocate(self, handle: str, num_slots: int, wait_s: float = 0.0) -> AllocateReply:
        await self._enter("allocate")
        taken = await self._node.line.allocate(self.owner, handle, num_slots, self._cap, wait_s)
        self._check_alive()
        if isinstance(taken, Refusal):
            raise ServiceError(ErrorCode.OVERLOADED, taken.reason, is_retryable=True)
        return AllocateReply(
            slots=[block.slot for block in taken], generations=[block.generation for block in taken]
        )

    async def is_wanted(self, handle: str) -> bool:
        await self._enter("wanted")
        return self._node.line.is_wanted(handle)

    async def seal(self, handle: str, start: int, chain: bytes, blocks: list[SealBlock]) -> Blocks:
        await self._enter("seal")
        items = []
        for block in blocks:
            checksum = self._node.checksum(block.slot, block.valid_tokens)
            if block.checksum not in (0, checksum):
                raise ServiceError(ErrorCode.KV_LOST, f"slot {block.slot}: wrong checksum")
            key = BlockKey(block.key) if block.key else None
            items.append(SealItem(Slot(block.slot), Generation(block.generation), checksum, key))
            if self._node.corrupt_seals:
                self._node.corrupt_seals -= 1
                self._node.bytes[block.slot, 0, 0, 0, 0] ^= 0x10
        done = self._node.pool.seal(self.owner, handle, start, split(chain), items)
        return Blocks(
            slots=[item.block.slot for item in done],
            generations=[item.block.generation for item in done],
            checksums=[item.block.checksum for item in done],
        )

    async def pull(
        self, handle: str, node: NodeRef, items: list[PullItem], remaining_ms: int
    ) -> PullReply:
        await self._enter("pull")
        peer = self._node.peers.get(node.id)
        if peer is None or peer.ref != node:
            raise ServiceError(ErrorCode.PEER_LOST, f"{node.id} is gone", is_retryable=True)
        moved = 0
        for item in items:
            if int(peer.generations[item.peer_slot]) != item.peer_generation:
                raise ServiceError(ErrorCode.KV_LOST, "another generation", is_retryable=True)
            layers = slice(item.first_layer, item.end_layer)
            part = peer.bytes[item.peer_slot, layers, :, : item.valid_tokens]
            self._node.bytes[item.slot, layers, :, : item.valid_tokens] = part
            moved += part.nbytes
            self._node.pulls.append(item)
        if items and self._node.corrupt_pulls:
            self._node.corrupt_pulls -= 1
            self._node.bytes[items[0].slot, items[0].first_layer, 0, 0, 0] ^= 0xFF
        await asyncio.sleep(0)
        return PullReply(moved_bytes=moved, seconds=0.001, transport="fake")

    async def release(self, handle: str) -> None:
        await self._enter("release")
        self._node.pool.release(self.owner, handle)

    def generations_hold(self, slots: list[int], generations: list[int]) -> bool:
        return [int(self._node.generations[slot]) for slot in slots] == generations

    def close(self) -> None:
        self._node.pool.release_owner(self.owner)
        self.lost.set()

    async def _enter(self, operation: str) -> None:
        self._check_alive()
        gate = self._node.gates.get(operation)
        if gate is not None:
            await gate.pass_through()
            self._check_alive()

    def _check_alive(self) -> None:
        if self.lost.is_set():
            raise ServiceError(ErrorCode.POOL_LOST, "the transfer is gone", is_retryable=True)
