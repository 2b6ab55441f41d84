"""The second tier of this node: which blocks are on the SSD, what is written and read, and when.

A BlockPool over the slots of the files keeps the books: what is there is prefix-closed by itself,
least recently used goes first. Nothing here ever fails a request: a tier that has trouble is off.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from services.transfer.node_pool import NodePool
from services.transfer.ssd_files import SsdError
from services.transfer.ssd_records import StoredBlock
from services.transfer.threads import settled
from shared.kv.block_pool import BlockPool
from shared.kv.block_tree import BlockPlace, place_of
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey, Slot
from shared.kv.pool_values import HeldBlock, SealItem
from shared.runtime.clock import monotonic_s
from shared.transport.checksum import block_checksum

log = logging.getLogger("moonpool.transfer.ssd")
WRITER = "ssd"
READER = "reader"
NUM_WRITE_THREADS = 2
MAX_HELD_SHARE = 0.125
"""Of the pool's slots: what waits to be written cannot be evicted."""
MAX_READ_ERRORS = 3
MAX_LATER_KEYS = 16_384
NO_CAP = 1 << 62
State = Literal["loading", "on", "read_only", "off"]


class Store(Protocol):
    """What the tier needs of its files; blocking calls."""

    @property
    def num_slots(self) -> int: ...

    def open(self) -> list[StoredBlock]: ...

    def read(self, slot: int, into: npt.NDArray[np.uint8]) -> None: ...

    def write(
        self, slot: int, data: npt.NDArray[np.uint8], place: BlockPlace, checksum: int
    ) -> None: ...

    def forget(self, slot: int) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class SsdCounts:
    """Since the start."""

    bytes_written: int = 0
    bytes_read: int = 0
    read_s: float = 0.0
    """Time in which at least one read ran."""
    dropped: int = 0
    """Blocks that were not written: the queue was full."""
    errors: int = 0
    bad_blocks: int = 0


@dataclass(slots=True, eq=False)
class _Write:
    """Leading keys of a chain, held in DRAM under `handle` until they are written."""

    handle: str
    keys: list[BlockKey]
    num_blocks: int


class SsdTier:
    """`run` is a task of the service; before it has loaded, the tier has nothing."""

    def __init__(
        self,
        pool: NodePool,
        store: Store,
        *,
        num_threads: int,
        queue_blocks: int,
        on_change: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._store = store
        self._on_change = on_change
        total = pool.blocks.counts.total
        self._max_queued = min(queue_blocks, max(1, int(total * MAX_HELD_SHARE)))
        self._num_queued = 0
        self._queue: asyncio.Queue[_Write] = asyncio.Queue()
        self._queued_keys: set[BlockKey] = set()
        self._later: dict[BlockKey, Sequence[BlockKey]] = {}
        """Chains that found no room in the queue, by their last key."""
        self._num_later = 0
        self._jobs = itertools.count(1)
        self._readers = ThreadPoolExecutor(num_threads, thread_name_prefix="ssd-read")
        self._writers = ThreadPoolExecutor(NUM_WRITE_THREADS, thread_name_prefix="ssd-write")
        self._running: set[asyncio.Future[Any]] = set()
        self._num_reading = 0
        self._reading_since_s = 0.0
        self.depth = 2 * num_threads
        """Reads under way at once that keep the disk busy."""
        self.blocks: BlockPool | None = None
        self.state: State = "loading"
        self.counts = SsdCounts()

    async def run(self) -> None:
        """Load what an earlier process left, then write what is offered."""
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(self._writers, self._store.open)
        try:
            await settled([opening])
            found = opening.result()
        except SsdError as error:
            log.warning("no SSD tier: %s", error)
            self.state = "off"
            return
        if self.state != "loading":
            return  # closed meanwhile
        self.blocks = BlockPool(self._store.num_slots, LruEviction())
        kept = [(Slot(block.slot), block.checksum, block.place) for block in found]
        num_restored = self.blocks.restore(kept)
        self.state = "on"
        log.info(
            "SSD tier of %d slots: %d blocks are back, %d did not hang on a first block",
            self._store.num_slots,
            num_restored,
            len(found) - num_restored,
        )
        self._on_change()
        self._want_later()
        while True:
            await self._write(await self._queue.get())

    # --- reading -------------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        return self.blocks is not None and self.state != "off"

    def num_leading(self, keys: Sequence[BlockKey]) -> int:
        """Of a chain from its first block on; 0 for a part of one: it has no place in the pool."""
        if self.blocks is None or self.state == "off" or not is_from_root(self.blocks, keys):
            return 0
        return self.blocks.num_leading(keys)

    def hold(self, keys: Sequence[BlockKey]) -> tuple[str, list[HeldBlock]]:
        """Blocks that stay on the SSD until `let_go` of the handle."""
        handle = str(next(self._jobs))
        return handle, [] if self.blocks is None else self.blocks.lease(READER, handle, keys)

    def let_go(self, handle: str) -> None:
        if self.blocks is not None:
            self.blocks.release(READER, handle)

    def read(self, block: HeldBlock, into: Slot) -> asyncio.Future[int]:
        """A held block into a WRITING slot of the pool, in a thread; then `finish` says how it was.

        The slot is free of the thread once the future is done, not when a wait is cancelled.
        """
        future = asyncio.get_running_loop().run_in_executor(
            self._readers, self._read, block.slot, self._pool.segment.block(into)
        )
        if not self._num_reading:
            self._reading_since_s = monotonic_s()
        self._num_reading += 1
        self._running.add(future)
        future.add_done_callback(self._read_ended)
        return future

    def _read(self, slot: Slot, into: npt.NDArray[np.uint8]) -> int:
        self._store.read(slot, into)
        return block_checksum(into, self._pool.geometry, self._pool.geometry.block_tokens)

    def _read_ended(self, future: asyncio.Future[int]) -> None:
        self._running.discard(future)
        self._num_reading -= 1
        if not self._num_reading:
            self.counts.read_s += monotonic_s() - self._reading_since_s

    async def finish(self, block: HeldBlock, reading: asyncio.Future[int]) -> bool:
        """Whether the block arrived as it was written; one that did not leaves the tier."""
        await settled([reading])
        try:
            checksum = reading.result()
        except OSError as error:
            self.counts.errors += 1
            log.warning("SSD block in slot %d cannot be read: %s", block.slot, error)
            self._forget(block)
            if self.counts.errors >= MAX_READ_ERRORS:
                self._turn_off(f"{self.counts.errors} errors")
            return False
        self.counts.bytes_read += self._pool.geometry.block_bytes
        if checksum != block.checksum:
            self.counts.bad_blocks += 1
            log.warning("SSD block in slot %d is damaged", block.slot)
            self._forget(block)
            return False
        return True

    # --- writing -------------------------------------------------------------------------------

    def offer(self, keys: Sequence[BlockKey]) -> int:
        """Write the leading blocks of a chain that are in DRAM, as far as there is room.

        How many were taken; what is there or on its way is not taken again.
        """
        if self.state != "on" or self.blocks is None or not is_from_root(self._pool.blocks, keys):
            return 0
        start = self.num_leading(keys)
        while start < len(keys) and keys[start] in self._queued_keys:
            start += 1
        room = min(self._max_queued - self._num_queued, self.blocks.num_available(WRITER, NO_CAP))
        count = max(0, min(len(keys) - start, room))
        if not count:
            return 0
        wanted = keys[: start + count]
        handle = str(next(self._jobs))
        held = self._pool.blocks.lease(WRITER, handle, wanted, is_use=False)
        job = _Write(handle, list(keys[: len(held)]), len(held) - start)
        if job.num_blocks <= 0:
            self._pool.blocks.release(WRITER, handle, is_use=False)
            return 0
        self._pool.blocks.drop(WRITER, handle, [block.slot for block in held[:start]])
        self._queued_keys.update(job.keys[start:])
        self._num_queued += job.num_blocks
        self._queue.put_nowait(job)
        return job.num_blocks

    def want(self, keys: Sequence[BlockKey]) -> None:
        """Offer the leading blocks of a chain now; later where it loads yet or has no room now."""
        if self.state == "loading":
            self._keep(keys, len(keys))
        if self.state != "on":
            return
        num_taken = self.num_leading(keys)
        self.offer(keys)
        while num_taken < len(keys) and self._is_there_or_coming(keys[num_taken]):
            num_taken += 1
        if num_taken < len(keys):
            self._keep(keys, len(keys) - num_taken)

    def _keep(self, keys: Sequence[BlockKey], num_missing: int) -> None:
        if self._num_later + len(keys) > MAX_LATER_KEYS:
            self.counts.dropped += num_missing
        elif keys[-1] not in self._later:
            self._later[keys[-1]] = keys
            self._num_later += len(keys)

    def _want_later(self) -> None:
        """Those that found no room, the oldest first, as far as they are still in DRAM."""
        for _ in range(len(self._later)):
            if self._num_queued >= self._max_queued:
                return
            keys = self._later.pop(next(iter(self._later)))
            self._num_later -= len(keys)
            self.want(keys[: self._pool.blocks.num_leading(keys)])

    def _is_there_or_coming(self, key: BlockKey) -> bool:
        assert self.blocks is not None, "only a loaded tier takes blocks"
        return key in self._queued_keys or self.blocks.is_readable(key)

    @property
    def num_waiting(self) -> int:
        """Blocks that are to be written."""
        return self._num_queued

    def is_worth_writing(self, chain: Sequence[BlockKey]) -> bool:
        """The last block of a chain is not on the SSD and could be."""
        if self.state != "on" or self.blocks is None:
            return False
        return len(chain) <= self.blocks.counts.total and not self.blocks.is_readable(chain[-1])

    async def _write(self, job: _Write) -> None:
        try:
            if self.state == "on":
                await self._write_run(job)
        except OSError as error:
            self.counts.errors += 1
            self.state = "read_only"
            log.warning("the SSD tier takes no more blocks: %s", error)
        finally:
            self._pool.blocks.release(WRITER, job.handle, is_use=False)
            self._num_queued -= job.num_blocks
            self._queued_keys.difference_update(job.keys[-job.num_blocks :])
            self._on_change()
        self._want_later()

    async def _write_run(self, job: _Write) -> None:
        """In the order of the chain: a block goes there only under its parent."""
        blocks, keys = self.blocks, job.keys
        assert blocks is not None, "only a loaded tier has jobs"
        blocks.lease(WRITER, job.handle, keys)  # the parents stay meanwhile
        start = blocks.num_leading(keys)
        sources = [self._pool.blocks.readable(key) for key in keys[start:]]
        count = min(len(sources), blocks.num_available(WRITER, NO_CAP))
        given = blocks.allocate(WRITER, job.handle, count, NO_CAP)
        assert isinstance(given, list), "as many as there are were asked for"
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[None]] = []
        items: list[SealItem] = []
        try:
            for offset, (source, target) in enumerate(zip(sources, given, strict=False)):
                if source is None or source.key is None:
                    break  # it was quarantined meanwhile
                futures.append(
                    loop.run_in_executor(
                        self._writers,
                        self._store.write,
                        target.slot,
                        self._pool.segment.block(source.slot),
                        place_of(keys, start + offset),
                        source.checksum,
                    )
                )
                items.append(SealItem(target.slot, target.generation, source.checksum, source.key))
            await settled(futures)
            for future in futures:
                future.result()
            if self.state == "off":
                return  # nothing of it is offered to anybody any more
            blocks.seal(WRITER, job.handle, start, keys, items)
            self.counts.bytes_written += len(items) * self._pool.geometry.block_bytes
        finally:
            blocks.release(WRITER, job.handle)

    def drop(self, key: BlockKey) -> int:
        """Forget a block and all below it for good; returns how many."""
        slots = [] if self.blocks is None else self.blocks.drop_blocks(key)
        if not slots:
            return 0
        # All of them: the first may be written again, and then the rest would hang on it.
        self.clear_records(slots)
        self._on_change()
        return len(slots)

    # --- trouble -------------------------------------------------------------------------------

    def _forget(self, block: HeldBlock) -> None:
        """That copy and what hangs on it are not there any more."""
        if self.blocks is None or block.key is None or self.blocks.readable(block.key) != block:
            return
        self.blocks.quarantine(block.key)
        self.clear_records([block.slot])
        self._on_change()

    def clear_records(self, slots: Sequence[Slot]) -> None:
        future = asyncio.get_running_loop().run_in_executor(
            self._writers, self._forget_records, slots
        )
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def _forget_records(self, slots: Sequence[Slot]) -> None:
        try:
            for slot in slots:
                self._store.forget(slot)
        except OSError as error:
            log.warning("records of blocks that are gone from the SSD stay: %s", error)

    def _turn_off(self, reason: str) -> None:
        if self.state == "off" or self.blocks is None:
            return
        self.state = "off"
        log.warning("the SSD tier is off until the next start: %s", reason)
        for run in self.blocks.inventory(0, self._store.num_slots)[0]:
            self.blocks.drop_blocks(run.keys[0])
        self._on_change()

    @property
    def read_bytes_per_s(self) -> float:
        """Measured; 0: nothing was read yet."""
        counts = self.counts
        return counts.bytes_read / counts.read_s if counts.read_s > 0 else 0.0

    async def close(self) -> None:
        """After the last call has ended."""
        self.state = "off"  # what waits to be written is not begun any more
        await settled(list(self._running))
        for threads in (self._readers, self._writers):
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)
        await asyncio.to_thread(self._store.close)


def is_from_root(blocks: BlockPool, keys: Sequence[BlockKey]) -> bool:
    """These keys, of which the first is here, are a chain from its first block on."""
    place = blocks.place(keys[0]) if keys else None
    return place is not None and place.index == 0
