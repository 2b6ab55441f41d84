"""The formatted pool of this node: bookkeeping, segment and checksums together.

Owns the only BlockPool, used on the loop alone; bytes are looked at in threads.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.transfer.settings import TransferSettings
from services.transfer.slot_line import SlotLine
from shared.kv.block_pool import BlockPool
from shared.kv.eviction.base import EvictionPolicy
from shared.kv.eviction.lru import LruEviction
from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.kv.ids import BlockKey, Slot
from shared.kv.pool_values import HeldBlock, SealedItem, SealItem
from shared.messages.common import ErrorCode
from shared.messages.transfer import KvGeometry, LocalDescriptor
from shared.runtime.errors import ServiceError
from shared.transport import segment_memory
from shared.transport.checksum import block_checksum
from shared.transport.segment import MemoryWish, Segment, SegmentError

log = logging.getLogger("moonpool.transfer.pool")
NUM_TOUCH_THREADS = 2
OnUsed = Callable[[str, str, Sequence[BlockKey]], None]


class NodePool:
    """Blocks of one root and geometry in one segment."""

    def __init__(
        self,
        root: bytes,
        geometry: KvGeometry,
        segment: Segment,
        threads: ThreadPoolExecutor,
        on_change: Callable[[], None],
        policy: EvictionPolicy | None = None,
    ) -> None:
        self.root = root
        self.geometry = geometry
        self.segment = segment
        self.blocks = BlockPool(
            segment.info.num_slots, policy or LruEviction(), segment.generations
        )
        self.line = SlotLine(self.blocks)
        self.checksum_failures_total = 0
        self._checking: Counter[tuple[str, str, BlockKey | None]] = Counter()
        """Held blocks by owner and handle that are looked at right now."""
        self._is_closed = threading.Event()
        self._threads = threads
        self.on_change = on_change
        """Called after the readable set may have changed."""
        self.on_used: OnUsed = lambda _owner, _handle, _keys: None
        """Called with the leading keys of a chain that a handle stored or holds from now on, after
        its owner and itself."""

    @classmethod
    async def format(
        cls,
        path: Path,
        root: bytes,
        geometry: KvGeometry,
        settings: TransferSettings,
        threads: ThreadPoolExecutor,
        on_change: Callable[[], None],
    ) -> "NodePool":
        """Make the segment; ServiceError when the memory is not there."""
        pool_bytes = settings.pool_bytes
        num_slots = pool_bytes // geometry.block_bytes
        if num_slots < 1:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"MOONPOOL_POOL_BYTES={pool_bytes} has no room for one block of "
                f"{geometry.block_bytes} bytes; raise it",
                field="geometry",
            )
        loop = asyncio.get_running_loop()
        wish = MemoryWish(settings.huge_pages, settings.numa_node)
        try:
            segment = await loop.run_in_executor(
                threads,
                lambda: Segment.create(
                    path, num_slots=num_slots, block_bytes=geometry.block_bytes, wish=wish
                ),
            )
        except SegmentError as error:
            raise ServiceError(ErrorCode.OVERLOADED, str(error)) from None
        log.info(
            "pool formatted: %d slots of %d bytes, %s",
            num_slots,
            geometry.block_bytes,
            segment.memory,
        )
        policy = EVICTION_POLICIES[settings.eviction]()
        return cls(root, geometry, segment, threads, on_change, policy)

    async def touch(self) -> None:
        """Make all pages ready; the first use of one costs far more than a later one."""
        is_done = await asyncio.to_thread(self._touch)
        if not is_done:
            log.info("pages are made at their first use: this kernel cannot do it ahead")

    def _touch(self) -> bool:
        with ThreadPoolExecutor(NUM_TOUCH_THREADS, thread_name_prefix="touch") as threads:
            return segment_memory.touch(self.segment.bytes, threads, self._is_closed)

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
        known = {key for key in keys if self._is_checked(owner, handle, key)}
        run = self.blocks.lease(owner, handle, keys, cap)
        unchecked = [index for index, block in enumerate(run) if block.key not in known]
        full = self.geometry.block_tokens
        marks = Counter((owner, handle, run[index].key) for index in unchecked)
        self._checking += marks
        try:
            found = await self.checksums([(run[index].slot, full) for index in unchecked])
        except BaseException:
            # Nobody may take for checked what the handle only holds.
            self.blocks.drop(owner, handle, [run[index].slot for index in unchecked])
            raise
        finally:
            self._checking -= marks
        for index, checksum in zip(unchecked, found, strict=True):
            if checksum != run[index].checksum:
                self._quarantine(run[index])
                self.blocks.drop(owner, handle, [block.slot for block in run[index:]])
                run = run[:index]
                break
        self.on_used(owner, handle, keys[: len(run)])
        return run

    def _is_checked(self, owner: str, handle: str, key: BlockKey) -> bool:
        is_held = self.blocks.holds(owner, handle, key)
        return is_held and (owner, handle, key) not in self._checking

    async def seal(
        self,
        owner: str,
        handle: str,
        start: int,
        chain: Sequence[BlockKey],
        items: list[SealItem],
    ) -> list[SealedItem]:
        """As BlockPool.seal; a copy that was here before is looked at before it is handed out.

        A damaged one gives way to the new one. ServiceError when one turned up unlooked at.
        """
        checked = await self._check_copies([item.key for item in items if item.key is not None])
        sealed = self.blocks.seal(owner, handle, start, chain, items)
        self.on_change()
        if num_readable := sum(item.is_readable for item in sealed):
            self.on_used(owner, handle, chain[: start + num_readable])
        late = [item.block for item in sealed if item.is_duplicate and item.block not in checked]
        if late and not await self._are_whole(late):
            raise ServiceError(
                ErrorCode.KV_LOST, "a block with the same key was damaged; compute it again"
            )
        return sealed

    async def _check_copies(self, keys: Sequence[BlockKey]) -> list[HeldBlock]:
        """Copies of these keys that are here and whole; those that are not leave."""
        found = [block for key in keys if (block := self.blocks.readable(key)) is not None]
        if not found:
            return []
        await self._are_whole(found)
        return [block for block in found if self.blocks.readable(_key(block)) == block]

    async def _are_whole(self, blocks: Sequence[HeldBlock]) -> bool:
        """Quarantines those that are damaged."""
        full = self.geometry.block_tokens
        found = await self.checksums([(block.slot, full) for block in blocks])
        damaged = [b for b, checksum in zip(blocks, found, strict=True) if checksum != b.checksum]
        for block in damaged:
            self._quarantine(block)
        return not damaged

    async def recheck(self, keys: Sequence[BlockKey]) -> None:
        """Look again at blocks that somebody found damaged; quarantine those that are."""
        for key in keys:
            block = self.blocks.readable(key)
            if block is not None:
                await self._are_whole([block])

    def _quarantine(self, block: HeldBlock) -> None:
        """Only that very copy: another one may have its key by now."""
        key = _key(block)
        if self.blocks.readable(key) != block:
            return
        self.checksum_failures_total += 1
        num_removed = self.blocks.quarantine(key)
        log.warning(
            "block %s in slot %d is damaged: %d blocks are no longer readable",
            key.hex(),
            block.slot,
            num_removed,
        )
        self.on_change()

    def close(self) -> None:
        self._is_closed.set()
        self.segment.close()


def _key(block: HeldBlock) -> BlockKey:
    assert block.key is not None, "readable blocks have keys"
    return block.key
