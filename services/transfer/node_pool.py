"""The formatted pool of this node: bookkeeping, segment and checksums together.

Owns the only BlockPool, used on the loop alone; bytes are looked at in threads.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.transfer.slot_line import SlotLine
from shared.kv.block_pool import BlockPool, HeldBlock
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey, Slot
from shared.messages.common import ErrorCode
from shared.messages.transfer import KvGeometry, LocalDescriptor
from shared.runtime.errors import ServiceError
from shared.transport.checksum import block_checksum
from shared.transport.segment import Segment, SegmentError

log = logging.getLogger("moonpool.transfer.pool")


class NodePool:
    """Blocks of one root and geometry in one segment."""

    def __init__(
        self,
        root: bytes,
        geometry: KvGeometry,
        segment: Segment,
        threads: ThreadPoolExecutor,
        on_change: Callable[[], None],
    ) -> None:
        self.root = root
        self.geometry = geometry
        self.segment = segment
        self.blocks = BlockPool(segment.info.num_slots, LruEviction(), segment.generations)
        self.line = SlotLine(self.blocks)
        self.checksum_failures_total = 0
        self._threads = threads
        self.on_change = on_change
        """Called after the readable set may have changed."""

    @classmethod
    async def format(
        cls,
        path: Path,
        root: bytes,
        geometry: KvGeometry,
        pool_bytes: int,
        threads: ThreadPoolExecutor,
        on_change: Callable[[], None],
    ) -> "NodePool":
        """Make the segment; ServiceError when the memory is not there."""
        num_slots = pool_bytes // geometry.block_bytes
        if num_slots < 1:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"MOONPOOL_POOL_BYTES={pool_bytes} has no room for one block of "
                f"{geometry.block_bytes} bytes; raise it",
                field="geometry",
            )
        loop = asyncio.get_running_loop()
        try:
            segment = await loop.run_in_executor(
                threads,
                lambda: Segment.create(path, num_slots=num_slots, block_bytes=geometry.block_bytes),
            )
        except SegmentError as error:
            raise ServiceError(ErrorCode.OVERLOADED, str(error)) from None
        log.info("pool formatted: %d slots of %d bytes", num_slots, geometry.block_bytes)
        return cls(root, geometry, segment, threads, on_change)

    @property
    def descriptor(self) -> LocalDescriptor:
        info = self.segment.info
        return LocalDescriptor(
            path=str(info.path),
            nonce=info.nonce,
            num_slots=info.num_slots,
            block_bytes=info.block_bytes,
            data_offset=info.data_offset,
        )

    def check_format(self, root: bytes, geometry: KvGeometry) -> None:
        """ServiceError that names the field in which a newcomer differs."""
        differing = [
            name
            for name in KvGeometry.model_fields
            if getattr(geometry, name) != getattr(self.geometry, name)
        ]
        if differing:
            name = differing[0]
            raise ServiceError(
                ErrorCode.FORMAT_MISMATCH,
                f"{name}: the pool has {getattr(self.geometry, name)}, you have "
                f"{getattr(geometry, name)}; attach to a node of your own model",
                field=name,
            )
        if root != self.root:
            raise ServiceError(
                ErrorCode.FORMAT_MISMATCH,
                f"root: the pool holds KV of root {self.root.hex()}, you have {root.hex()} "
                "(another kv_format); attach to a node of your own model",
                field="root",
            )

    async def checksums(self, blocks: Sequence[tuple[Slot, int]]) -> list[int]:
        """Checksums of (slot, valid tokens), computed in threads."""
        loop = asyncio.get_running_loop()
        return await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._threads,
                    block_checksum,
                    self.segment.block(slot),
                    self.geometry,
                    valid_tokens,
                )
                for slot, valid_tokens in blocks
            )
        )

    async def lease_verified(
        self, owner: str, handle: str, keys: Sequence[BlockKey], cap: int
    ) -> list[HeldBlock]:
        """Hold the leading run of `keys`; every block is checked once per handle.

        A block whose bytes are not what was sealed ends the run and leaves the readable set.
        """
        known = {key for key in keys if self.blocks.holds(owner, handle, key)}
        run = self.blocks.lease(owner, handle, keys, cap)
        unchecked = [index for index, block in enumerate(run) if block.key not in known]
        full = self.geometry.block_tokens
        found = await self.checksums([(run[index].slot, full) for index in unchecked])
        for index, checksum in zip(unchecked, found, strict=True):
            if checksum != run[index].checksum:
                self._quarantine(run[index])
                self.blocks.drop(owner, handle, [block.slot for block in run[index:]])
                return run[:index]
        return run

    async def recheck(self, keys: Sequence[BlockKey]) -> None:
        """Look again at blocks that somebody found damaged; quarantine those that are."""
        for key in keys:
            block = self.blocks.readable(key)
            if block is None:
                continue
            (checksum,) = await self.checksums([(block.slot, self.geometry.block_tokens)])
            if checksum != block.checksum:
                self._quarantine(block)

    def _quarantine(self, block: HeldBlock) -> None:
        """Only that very copy: another one may have its key by now."""
        assert block.key is not None
        if self.blocks.readable(block.key) != block:
            return
        self.checksum_failures_total += 1
        num_removed = self.blocks.quarantine(block.key)
        log.warning(
            "block %s in slot %d is damaged: %d blocks are no longer readable",
            block.key.hex(),
            block.slot,
            num_removed,
        )
        self.on_change()

    def close(self) -> None:
        self.segment.close()
