"""What an attached worker can ask: each call of the socket becomes one on the pool. No frames here.

Calls of one handle end before the handle is released, and all calls of an attachment before it
gives everything back: no thread touches a slot that is free.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.transfer.attachments import Attachment, Attachments
from services.transfer.fetcher import blocks_of
from services.transfer.node import FormattedNode, Node
from services.transfer.promoter import Promoted, Promoter
from services.transfer.tiers import Tiers
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey, Generation, Slot
from shared.kv.pool_values import NotYours, Refusal, SealItem
from shared.messages.common import ErrorCode, Ok
from shared.messages.envelope import Message, decode
from shared.messages.pool import (
    Allocate,
    AllocateReply,
    Attach,
    AttachReply,
    Call,
    FetchBlocks,
    FetchBlocksReply,
    FromDisk,
    LeaseBlocks,
    LeaseBlocksReply,
    PoolDescription,
    Pull,
    PullReply,
    Release,
    Seal,
    SealReply,
    Wanted,
    WantedReply,
)
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.telemetry import tracing

M = TypeVar("M", bound=Message)
DISK_SHARE = 0.5
"""Of the time of a fetch that the node's own SSD may take."""


class WorkerCalls:
    """Makes a session for each socket; knows whether the node drains."""

    def __init__(self, node: Node, attachments: Attachments, on_change: Callable[[], None]) -> None:
        self.node = node
        self.attachments = attachments
        self.on_change = on_change
        self.is_draining = False
        self.tiers: Tiers | None = None
        """Of the formatted node."""

    def open(self) -> "Session":
        return Session(self)

    def check_not_draining(self) -> None:
        if self.is_draining:
            raise ServiceError(
                ErrorCode.DRAINING,
                f"node {self.node.ref.id} drains; use another one",
                is_retryable=True,
            )


class Session:
    """One socket: describes itself, attaches once, then works under its own owner name."""

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls
        self._attachment: Attachment | None = None
        self._is_ended = False

    async def call(self, call: Call) -> Message:
        match call.operation:
            case "describe":
                return self._describe()
            case "attach":
                return await self._attach(decode(call.body, Attach))
            case "allocate":
                allocate = decode(call.body, Allocate)
                return await self._tracked(
                    allocate.handle, lambda a, n: self._allocate(a, n, allocate)
                )
            case "wanted":
                _, node = self._known()
                handle = decode(call.body, Wanted).handle
                return WantedReply(is_wanted=node.pool.line.is_wanted(handle))
            case "release":
                return await self._release(decode(call.body, Release))
            case "lease":
                lease = decode(call.body, LeaseBlocks)
                return await self._tracked(lease.handle, lambda a, n: self._lease(a, n, lease))
            case "fetch":
                fetch = decode(call.body, FetchBlocks)
                self._calls.check_not_draining()
                return await self._tracked(fetch.handle, lambda a, n: self._fetch(a, n, fetch))
            case "seal":
                seal = decode(call.body, Seal)
                return await self._tracked(seal.handle, lambda a, n: self._seal(a, n, seal))
            case "pull":
                pull = decode(call.body, Pull)
                return await self._tracked(pull.handle, lambda a, n: self._pull(a, n, pull))

    async def end(self) -> None:
        """Stop its calls, then free its slots and end its leases."""
        self._is_ended = True
        if self._attachment is None:
            return
        attachment, node = self._known()
        try:
            await attachment.stop_all()
        finally:
            node.pool.blocks.release_owner(attachment.owner)
            node.pool.on_change()
            self._calls.attachments.remove(attachment)
            self._calls.on_change()

    def _known(self) -> tuple[Attachment, FormattedNode]:
        node = self._calls.node.formatted
        if self._attachment is None or node is None:
            raise ServiceError(ErrorCode.BAD_REQUEST, "operation: attach first", field="operation")
        return self._attachment, node

    async def _tracked(
        self, handle: str, work: Callable[[Attachment, FormattedNode], Awaitable[Message]]
    ) -> Message:
        """Run a call that `release` of its handle or the end of the socket stops."""
        attachment, node = self._known()
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        attachment.begin(handle, task)
        try:
            return await work(attachment, node)
        finally:
            attachment.finish(handle, task)

    def _describe(self) -> PoolDescription:
        calls = self._calls
        return PoolDescription(
            node=calls.node.ref,
            is_ready=not calls.is_draining,
            workers=calls.attachments.by_role(),
        )

    async def _attach(self, request: Attach) -> AttachReply:
        self._calls.check_not_draining()
        if self._attachment is not None:
            raise ServiceError(ErrorCode.BAD_REQUEST, "attached already", field="operation")
        node = await self._calls.node.use_format(request.root, request.geometry)
        if self._is_ended or self._attachment is not None:
            raise ServiceError(ErrorCode.CANCELLED, "the socket closed or attached meanwhile")
        descriptor = node.pool.descriptor
        self._attachment = self._calls.attachments.add(request, descriptor.num_slots)
        self._calls.on_change()
        return AttachReply(
            node=self._calls.node.ref, segment=descriptor, max_slots=self._attachment.cap
        )

    async def _allocate(
        self, attachment: Attachment, node: FormattedNode, request: Allocate
    ) -> AllocateReply:
        given = await node.pool.line.allocate(
            attachment.owner,
            request.handle,
            request.num_slots,
            attachment.cap,
            request.wait_ms / 1000,
        )
        if isinstance(given, Refusal):
            limit = "this worker's share" if given.reason == "over_cap" else "the pool"
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{given.num_wanted} slots wanted, {limit} has {given.num_available} now",
                is_retryable=True,
            )
        node.pool.on_change()  # something may have been evicted
        return AllocateReply(
            slots=[block.slot for block in given],
            generations=[block.generation for block in given],
        )

    async def _release(self, request: Release) -> Ok:
        attachment, node = self._known()
        await attachment.stop_handle(request.handle)
        node.pool.blocks.release(attachment.owner, request.handle)
        node.pool.on_change()  # more can go
        return Ok()

    async def _lease(
        self, attachment: Attachment, node: FormattedNode, request: LeaseBlocks
    ) -> LeaseBlocksReply:
        with tracing.span("lease", "server") as span:
            held, promoted = await self._promoter.hold_verified(
                attachment.owner,
                request.handle,
                _keys("keys", request.keys),
                attachment.cap,
                monotonic_s() + request.remaining_ms / 1000,
            )
            span.set({"blocks": len(held), "disk_blocks": promoted.num_blocks})
        return LeaseBlocksReply(blocks=blocks_of(held), from_disk=_from_disk(node, promoted))

    async def _pull(self, attachment: Attachment, node: FormattedNode, request: Pull) -> PullReply:
        with tracing.span("pull", "server", {"peer": request.node.id}) as span:
            reply = await node.puller.pull(attachment.owner, request)
            span.set({"bytes": reply.moved_bytes, "transport": reply.transport})
        return reply

    async def _fetch(
        self, attachment: Attachment, node: FormattedNode, request: FetchBlocks
    ) -> FetchBlocksReply:
        told = {"peer": request.source.node.id}
        with tracing.span("fetch", "server", told) as span:
            reply = await self._fetch_all(attachment, node, request)
            span.set({"bytes": reply.fetched_bytes, "transport": reply.transport})
        return reply

    async def _fetch_all(
        self, attachment: Attachment, node: FormattedNode, request: FetchBlocks
    ) -> FetchBlocksReply:
        """What this node has in any tier first, then what is elsewhere."""
        started_s = monotonic_s()
        _, promoted = await self._promoter.hold_verified(
            attachment.owner,
            request.handle,
            _keys("keys", request.keys),
            attachment.cap,
            started_s + DISK_SHARE * request.remaining_ms / 1000,
        )
        passed_ms = int((monotonic_s() - started_s) * 1000)
        remaining_ms = max(request.remaining_ms - passed_ms, 1)
        rest = request.model_copy(update={"remaining_ms": remaining_ms})
        reply = await node.fetcher.fetch(attachment.owner, attachment.cap, rest)
        return reply.model_copy(update={"from_disk": _from_disk(node, promoted)})

    @property
    def _promoter(self) -> Promoter:
        assert self._calls.tiers is not None, "a formatted node has tiers"
        return self._calls.tiers.promoter

    async def _seal(self, attachment: Attachment, node: FormattedNode, request: Seal) -> SealReply:
        blocks = node.pool.blocks
        full = node.pool.geometry.block_tokens
        for number, block in enumerate(request.blocks):
            where = f"blocks.{number}"
            if block.valid_tokens > full or (block.key and block.valid_tokens < full):
                raise _bad(
                    f"{where}.valid_tokens", f"a block has {full}, this {block.valid_tokens}"
                )
            if not blocks.owns_writing(
                attachment.owner, request.handle, Slot(block.slot), Generation(block.generation)
            ):
                raise _bad(f"{where}.slot", f"{block.slot} is not a WRITING slot of the handle")
            if node.puller.is_writing(Slot(block.slot)):
                raise _bad(f"{where}.slot", f"{block.slot}: a pull into it has not ended")
        checksums = await node.pool.checksums(
            [(Slot(block.slot), block.valid_tokens) for block in request.blocks]
        )
        items: list[SealItem] = []
        for number, (block, checksum) in enumerate(zip(request.blocks, checksums, strict=True)):
            if block.checksum not in (0, checksum):
                node.pool.checksum_failures_total += 1
                raise ServiceError(
                    ErrorCode.KV_LOST,
                    f"blocks.{number}.checksum: the bytes in slot {block.slot} are others",
                    field=f"blocks.{number}.checksum",
                )
            key = BlockKey(block.key) if block.key else None
            items.append(SealItem(Slot(block.slot), Generation(block.generation), checksum, key))
        try:
            sealed = await node.pool.seal(
                attachment.owner,
                request.handle,
                request.start,
                _keys("chain", request.chain),
                items,
            )
        except (NotYours, ValueError) as error:
            raise _bad("blocks", str(error)) from None
        return SealReply(blocks=blocks_of([item.block for item in sealed]))


def _from_disk(node: FormattedNode, promoted: Promoted) -> FromDisk:
    return FromDisk(
        num_blocks=promoted.num_blocks,
        num_bytes=promoted.num_blocks * node.pool.geometry.block_bytes,
        seconds=promoted.seconds,
    )


def _keys(field: str, packed: bytes) -> list[BlockKey]:
    try:
        return split(packed)
    except ValueError as error:
        raise ServiceError(ErrorCode.BAD_REQUEST, str(error), field=field) from None


def _bad(field: str, problem: str) -> ServiceError:
    return ServiceError(ErrorCode.BAD_REQUEST, f"{field}: {problem}", field=field)
