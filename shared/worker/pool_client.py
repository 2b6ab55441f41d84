"""A worker's side of its node's pool: attach, hold, allocate, seal, pull, over the unix socket.

Reads and writes bytes only through `data`. Everything held here ends when the socket closes.
"""

import asyncio
from pathlib import Path
from typing import Literal, TypeVar

from shared.messages.common import ErrorCode, FetchSource, NodeRef, Ok, RequestRef
from shared.messages.envelope import Message
from shared.messages.pool import (
    Allocate,
    AllocateReply,
    Attach,
    AttachReply,
    Blocks,
    FetchBlocks,
    FetchBlocksReply,
    LeaseBlocks,
    LeaseBlocksReply,
    Pull,
    PullItem,
    PullReply,
    Release,
    Seal,
    SealBlock,
    SealReply,
    Wanted,
    WantedReply,
)
from shared.messages.transfer import KvGeometry
from shared.runtime.errors import ServiceError
from shared.transport.segment import Segment, SegmentError, SegmentInfo
from shared.worker.pool_connection import CALL_TIMEOUT_S, PoolConnection
from shared.worker.pool_search import find_pool
from shared.worker.pool_watch import wait_lost

R = TypeVar("R", bound=Message)
GRACE_S = 2.0
"""A call that has a deadline of its own is waited for this much longer."""
Role = Literal["prefill", "decode", "both"]


class PoolClient:
    """One attachment to one incarnation of one node."""

    def __init__(self, connection: PoolConnection, attached: AttachReply, segment: Segment) -> None:
        self._connection = connection
        self._segment = segment
        self.node = attached.node
        self.max_slots = attached.max_slots
        """Most slots that this attachment may have at once."""
        self.num_slots = segment.info.num_slots
        self.data: memoryview = segment.data
        """The bytes of all slots, writable. Write only into own WRITING slots."""

    @classmethod
    async def attach(
        cls,
        shared_dir: Path,
        *,
        node: str | None,
        instance: str,
        incarnation: str,
        role: Role,
        root: bytes,
        geometry: KvGeometry,
        max_slots: int | None,
        context_blocks: int = 1,
        timeout_s: float,
    ) -> "PoolClient":
        """Attach to the named node, or to the live one with the fewest workers of this role.

        Waits until there is one. Raises ServiceError: POOL_LOST when none came in time,
        FORMAT_MISMATCH when every one holds another model (the message names the field).
        """
        request = Attach(
            instance=instance,
            incarnation=incarnation,
            role=role,
            root=root,
            geometry=geometry,
            max_slots=max_slots,
            context_blocks=context_blocks,
        )
        connection, reply = await find_pool(shared_dir, node, request, timeout_s)
        try:
            segment = await asyncio.to_thread(_map_segment, reply)
        except SegmentError as error:
            connection.close()
            raise ServiceError(ErrorCode.POOL_LOST, str(error), is_retryable=True) from None
        return cls(connection, reply, segment)

    @property
    def lost(self) -> asyncio.Event:
        """Set when the transfer is gone, or silent for long: no call succeeds any more."""
        return self._connection.lost

    async def wait_lost(self) -> None:
        """Until `lost` is set; notices a transfer that hangs. Await it all the time."""
        await wait_lost(self._connection)

    async def lease(self, handle: str, keys: bytes) -> Blocks:
        """Hold the leading run of `keys` that the node has; checksums are verified."""
        return (await self.hold(handle, keys)).blocks

    async def hold(self, handle: str, keys: bytes, remaining_ms: int = 8_000) -> LeaseBlocksReply:
        """As `lease`; the answer says what was read from disk for it."""
        lease = LeaseBlocks(handle=handle, keys=keys, remaining_ms=max(remaining_ms, 1))
        timeout_s = lease.remaining_ms / 1000 + GRACE_S
        return await self._call("lease", lease, LeaseBlocksReply, timeout_s)

    async def fetch(
        self,
        handle: str,
        ref: RequestRef,
        keys: bytes,
        source: FetchSource,
        remaining_ms: int,
    ) -> FetchBlocksReply:
        """Bring the leading run of `keys` here, hold what is here then. Failure shortens it."""
        fetch = FetchBlocks(
            handle=handle, ref=ref, keys=keys, source=source, remaining_ms=max(remaining_ms, 1)
        )
        timeout_s = fetch.remaining_ms / 1000 + GRACE_S
        return await self._call("fetch", fetch, FetchBlocksReply, timeout_s)

    async def allocate(self, handle: str, num_slots: int, wait_s: float = 0.0) -> AllocateReply:
        """WRITING slots, all or none; ServiceError OVERLOADED when there are none for so long."""
        allocate = Allocate(handle=handle, num_slots=num_slots, wait_ms=int(wait_s * 1000))
        timeout_s = CALL_TIMEOUT_S + wait_s
        return await self._call("allocate", allocate, AllocateReply, timeout_s)

    async def is_wanted(self, handle: str) -> bool:
        """Whether a request that goes before this one has waited long for slots of this pool."""
        return (await self._call("wanted", Wanted(handle=handle), WantedReply)).is_wanted

    async def seal(self, handle: str, start: int, chain: bytes, blocks: list[SealBlock]) -> Blocks:
        """Finish WRITING slots; the answer names the slot that holds each block from now on."""
        seal = Seal(handle=handle, start=start, chain=chain, blocks=blocks)
        return (await self._call("seal", seal, SealReply)).blocks

    async def pull(
        self, handle: str, node: NodeRef, items: list[PullItem], remaining_ms: int
    ) -> PullReply:
        """Copy layers of a peer's slots into own WRITING slots; all of them or ServiceError."""
        pull = Pull(handle=handle, node=node, items=items, remaining_ms=max(remaining_ms, 1))
        return await self._call("pull", pull, PullReply, pull.remaining_ms / 1000 + GRACE_S)

    async def release(self, handle: str) -> None:
        """Let go of everything held under the handle; calls that run for it are stopped first."""
        await self._call("release", Release(handle=handle), Ok)

    def generations_hold(self, slots: list[int], generations: list[int]) -> bool:
        """Whether every slot still is in the use that was leased: ask after reading in place."""
        return self._segment.generations_hold(slots, generations)

    def close(self) -> None:
        """Detach; the transfer frees everything that was held."""
        self._connection.close()
        self.data = memoryview(b"")
        self._segment.close()

    async def _call(
        self,
        operation: Literal["lease", "fetch", "allocate", "wanted", "seal", "pull", "release"],
        message: Message,
        reply_type: type[R],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> R:
        return await self._connection.call(operation, message, reply_type, timeout_s=timeout_s)


def _map_segment(reply: AttachReply) -> Segment:
    described = reply.segment
    info = SegmentInfo(
        path=Path(described.path),
        nonce=described.nonce,
        num_slots=described.num_slots,
        block_bytes=described.block_bytes,
        data_offset=described.data_offset,
    )
    return Segment.open(info, is_writable=True)
