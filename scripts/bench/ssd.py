"""The SSD tier beside plain direct reads of the same files, and the pool's books at many slots.

The tier's reads go all the way: from the index over the disk, checked, sealed in the pool.
"""

import asyncio
import hashlib
import mmap
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.transfer.node_pool import NodePool
from services.transfer.promoter import Promoter
from services.transfer.ssd_files import SsdFiles, stride_of
from services.transfer.ssd_tier import SsdTier
from shared.kv.block_pool import BlockPool
from shared.kv.block_tree import place_of
from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.kv.ids import KEY_BYTES, BlockKey
from shared.kv.pool_values import SealItem
from shared.messages.transfer import KvGeometry
from shared.runtime.clock import monotonic_s
from shared.transport.checksum import block_checksum
from shared.transport.segment import Segment

ROOT = bytes(KEY_BYTES)
NUM_THREADS = 4
CHAIN_BLOCKS = 256
LAG_STEP_S = 0.002
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ReadFigures:
    """Medians over the rounds."""

    block_bytes: int
    plain_bytes_per_s: float
    tier_bytes_per_s: float
    ratio: float
    """Median of the rounds' own ratios: both were read right after one another."""
    tier_cpu_s_per_gb: float
    max_lag_ms: float
    """How long the event loop was held up at most while the tier read."""
    is_direct: bool


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """Microseconds a slot, in batches as large as a prompt."""

    num_slots: int
    policy: str
    allocate_us: float
    lease_us: float
    evict_us: float


def measure_reads(folder: Path, block_bytes: int, total_bytes: int, rounds: int) -> ReadFigures:
    """Needs `total_bytes` in the folder and as much in /dev/shm."""
    place = Path(tempfile.mkdtemp(prefix="moonpool-bench-", dir=folder))
    shared = Path(tempfile.mkdtemp(prefix="moonpool-bench-", dir="/dev/shm"))
    try:
        return asyncio.run(_measure_reads(place, shared, block_bytes, total_bytes, rounds))
    finally:
        shutil.rmtree(place)
        shutil.rmtree(shared)


async def _measure_reads(
    place: Path, shared: Path, block_bytes: int, total_bytes: int, rounds: int
) -> ReadFigures:
    geometry = KvGeometry(num_layers=1, block_tokens=256, token_bytes=block_bytes // 512)
    count = max(total_bytes // block_bytes, 2 * NUM_THREADS)
    keys = [BlockKey(hashlib.blake2b(b"%d" % n, digest_size=16).digest()) for n in range(count)]
    await asyncio.to_thread(_fill, place, geometry, keys)
    segment = Segment.create(shared / "n.1.seg", num_slots=count, block_bytes=block_bytes)
    segment.bytes[:] = 1
    files = SsdFiles(place, "bench", ROOT, block_bytes, count * stride_of(block_bytes))
    ratios, plain, through = [], [], []
    cpu_s = max_lag_s = 0.0
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        pool = NodePool(ROOT, geometry, segment, threads, lambda: None)
        tier = SsdTier(pool, files, num_threads=NUM_THREADS, queue_blocks=1, on_change=lambda: None)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(tier.run(), name="tier")
            while not tier.is_readable:  # noqa: ASYNC110
                await asyncio.sleep(LAG_STEP_S)
            for number in range(rounds + 1):
                # In turns first: a disk that gives bursts gives them to both.
                is_plain_first = number % 2 == 0
                if is_plain_first:
                    plain_s = await _plain_s(files, threads, count, block_bytes)
                started_s, started_cpu_s = monotonic_s(), time.process_time()
                lag_s = await _promote(pool, tier, keys)
                tier_s = monotonic_s() - started_s
                tier_cpu_s = time.process_time() - started_cpu_s
                if not is_plain_first:
                    plain_s = await _plain_s(files, threads, count, block_bytes)
                if number == 0:
                    continue  # warm: pages, threads
                cpu_s += tier_cpu_s
                max_lag_s = max(max_lag_s, lag_s)
                plain.append(count * block_bytes / plain_s)
                through.append(count * block_bytes / tier_s)
                ratios.append(plain_s / tier_s)
            running.cancel()
        await tier.close()
    pool.close()
    return ReadFigures(
        block_bytes=block_bytes,
        plain_bytes_per_s=statistics.median(plain),
        tier_bytes_per_s=statistics.median(through),
        ratio=statistics.median(ratios),
        tier_cpu_s_per_gb=cpu_s / (rounds * count * block_bytes / 1e9),
        max_lag_ms=max_lag_s * 1e3,
        is_direct=files.is_direct,
    )


def _fill(place: Path, geometry: KvGeometry, keys: Sequence[BlockKey]) -> None:
    """Blocks as an earlier process would have left them."""
    block_bytes = geometry.block_bytes
    files = SsdFiles(place, "bench", ROOT, block_bytes, len(keys) * stride_of(block_bytes))
    files.open()
    buffer = mmap.mmap(-1, block_bytes)
    block: Bytes = np.frombuffer(buffer, dtype=np.uint8)
    block[:] = np.frombuffer(secrets.token_bytes(block_bytes), dtype=np.uint8)
    for slot in range(len(keys)):
        block[:16] = np.frombuffer(keys[slot], dtype=np.uint8)
        checksum = block_checksum(block, geometry, geometry.block_tokens)
        files.write(slot, block, place_of(keys, slot), checksum)
    files.close()


async def _plain_s(
    files: SsdFiles, threads: ThreadPoolExecutor, count: int, block_bytes: int
) -> float:
    return await asyncio.to_thread(_read_plain, files, threads, count, block_bytes)


def _read_plain(
    files: SsdFiles, threads: ThreadPoolExecutor, count: int, block_bytes: int
) -> float:
    """As fio does with as many jobs: direct reads into a few buffers, nothing looked at."""
    buffers = [
        np.frombuffer(mmap.mmap(-1, stride_of(block_bytes)), dtype=np.uint8)[:block_bytes]
        for _ in range(NUM_THREADS)
    ]
    for buffer in buffers:
        buffer[:] = 0

    def read(job: int) -> None:
        for slot in range(job, count, NUM_THREADS):
            files.read(slot, buffers[job])

    started_s = time.perf_counter()
    list(threads.map(read, range(NUM_THREADS)))
    return time.perf_counter() - started_s


async def _promote(pool: NodePool, tier: SsdTier, keys: Sequence[BlockKey]) -> float:
    """All blocks into the pool and out of it again; the longest that the loop was held up."""
    lag_s = 0.0
    is_over = asyncio.Event()

    async def watch() -> None:
        nonlocal lag_s
        while not is_over.is_set():
            before_s = monotonic_s()
            await asyncio.sleep(LAG_STEP_S)
            lag_s = max(lag_s, monotonic_s() - before_s - LAG_STEP_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch(), name="lag")
        brought = await Promoter(pool, tier).bring("b", "b", keys, len(keys), monotonic_s() + 600)
        is_over.set()
    if brought.num_blocks != len(keys):
        raise RuntimeError(f"{brought.num_blocks} of {len(keys)} blocks came from the SSD")
    pool.blocks.release("b", "b")
    pool.blocks.evict(len(keys))
    return lag_s


def measure_slots(num_slots: int, policy: str) -> SlotFigures:
    """The pool is filled, every block leased, everything evicted; in prompts of 256 blocks."""
    pool = BlockPool(num_slots, EVICTION_POLICIES[policy]())
    count = num_slots // CHAIN_BLOCKS
    took = {"allocate": 0.0, "lease": 0.0, "evict": 0.0}
    chains = []
    for number in range(count):
        keys = secrets.token_bytes(CHAIN_BLOCKS * KEY_BYTES)
        chain = [BlockKey(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)]
        chains.append(chain)
        started_s = time.perf_counter()
        given = pool.allocate("w", "h", CHAIN_BLOCKS, num_slots)
        took["allocate"] += time.perf_counter() - started_s
        assert isinstance(given, list), f"chain {number} does not fit"
        items = [
            SealItem(block.slot, block.generation, 1, key)
            for block, key in zip(given, chain, strict=True)
        ]
        pool.seal("w", "h", 0, chain, items)
        pool.release("w", "h")
        while pool.drain_change() is not None:
            pass
    for chain in chains:
        started_s = time.perf_counter()
        pool.lease("w", "h", chain)
        pool.release("w", "h")
        took["lease"] += time.perf_counter() - started_s
    started_s = time.perf_counter()
    pool.evict(num_slots)
    took["evict"] += time.perf_counter() - started_s
    per_slot = {name: seconds / (count * CHAIN_BLOCKS) * 1e6 for name, seconds in took.items()}
    return SlotFigures(
        num_slots, policy, per_slot["allocate"], per_slot["lease"], per_slot["evict"]
    )
