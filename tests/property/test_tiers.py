"""DRAM and SSD of a node under any order of use, eviction, damage, errors, cancellation, death and
restart: what is handed out is what was stored, no slot is lost, the index hears the truth."""

import asyncio
import errno
import secrets
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.transfer.node_pool import NodePool
from services.transfer.promoter import Promoter
from services.transfer.ssd_tier import SsdTier
from shared.kv.ids import BlockKey, Slot
from shared.kv.pool_values import HeldBlock, Refusal, SealItem
from shared.kv.tiered_residency import drain, page
from shared.messages.transfer import KvGeometry
from shared.runtime.clock import monotonic_s
from shared.transport.segment import Segment
from tests.support.memory_store import MemoryStore

GEOMETRY = KvGeometry(num_layers=1, block_tokens=4, token_bytes=16)
NUM_SLOTS = 10
NUM_DISK_SLOTS = 7
CAP = 9
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
HANDLES = st.sampled_from(["r1/0", "r2/0", "r3/0"])
BITS = st.integers(0, 8 * GEOMETRY.block_bytes - 1)


def chain_of(path: list[int]) -> list[BlockKey]:
    names = ("".join(map(str, path[: index + 1])) for index in range(len(path)))
    return [BlockKey(name.encode().rjust(16, b".")) for name in names]


def bytes_of(key: BlockKey) -> npt.NDArray[np.uint8]:
    generator = np.random.default_rng(int.from_bytes(key, "little"))
    return generator.integers(0, 256, GEOMETRY.block_bytes, dtype=np.uint8)


class TierMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.threads = ThreadPoolExecutor(1)
        path = Path(f"/dev/shm/moonpool-tiers-{secrets.token_hex(6)}.seg")
        segment = Segment.create(path, num_slots=NUM_SLOTS, block_bytes=GEOMETRY.block_bytes)
        path.unlink()
        self.pool = NodePool(bytes(16), GEOMETRY, segment, self.threads, lambda: None)
        self.store = MemoryStore(NUM_DISK_SLOTS)
        self.mirror: dict[BlockKey, str] = {}
        self.start_tier()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def start_tier(self) -> None:
        self.tier = SsdTier(
            self.pool, self.store, num_threads=1, queue_blocks=4, on_change=lambda: None
        )
        self.promoter = Promoter(self.pool, self.tier)
        self.task = self.loop.create_task(self.tier.run())
        self.run(self.settle())

    async def settle(self) -> None:
        """Until the tier has loaded and nothing waits to be written."""
        async with asyncio.timeout(10):
            while self.tier.state == "loading" or self.tier.num_waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.0005)

    async def stop_tier(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.tier.close()

    # --- what happens --------------------------------------------------------------------------

    @rule(path=PATHS, handle=HANDLES)
    def compute(self, path: list[int], handle: str) -> None:
        """A prompt is computed anew; who has its blocks already keeps one copy of each."""
        keys = chain_of(path)
        given = self.pool.blocks.allocate("w", handle, len(keys), CAP)
        if isinstance(given, Refusal):
            return
        items = []
        for block, key in zip(given, keys, strict=True):
            self.pool.segment.block(block.slot)[:] = bytes_of(key)
            checksum = self.run(self.pool.checksums([(block.slot, 4)]))[0]
            items.append(SealItem(block.slot, block.generation, checksum, key))
        sealed = self.run(self.pool.seal("w", handle, 0, keys, items))
        self.check([item.block for item in sealed if item.is_readable])

    @rule(path=PATHS, handle=HANDLES)
    def reuse(self, path: list[int], handle: str) -> None:
        keys = chain_of(path)
        deadline_s = monotonic_s() + 5
        held, promoted = self.run(self.promoter.hold_verified("w", handle, keys, CAP, deadline_s))
        assert [block.key for block in held] == keys[: len(held)]
        assert promoted.num_blocks <= len(held)
        self.check(held)

    def check(self, blocks: list[HeldBlock]) -> None:
        for block in blocks:
            assert block.key is not None
            assert np.array_equal(self.pool.segment.block(block.slot), bytes_of(block.key))

    @rule(path=PATHS)
    def write_to_disk(self, path: list[int]) -> None:
        self.tier.want(chain_of(path)[: self.pool.blocks.num_leading(chain_of(path))])
        self.run(self.settle())

    @rule(path=PATHS)
    def have_it_on_disk_alone(self, path: list[int]) -> None:
        self.compute(path, "r4/0")
        self.write_to_disk(path)
        self.pool.blocks.release_owner("w")
        self.pool.blocks.evict(NUM_SLOTS)

    @rule(path=PATHS, bit=BITS, offset=st.integers(0, 4))
    def damage_what_is_on_disk_alone(self, path: list[int], bit: int, offset: int) -> None:
        self.have_it_on_disk_alone(path)
        slots = sorted(self.store.blocks)
        if slots:
            self.a_bit_flips_on_disk(slots[offset % len(slots)], bit)
        self.reuse(path, "r1/0")

    @rule(path=PATHS, handle=HANDLES)
    def give_up_in_the_middle(self, path: list[int], handle: str) -> None:
        """The caller is stopped while the disk is read."""
        self.store.gate.clear()

        async def stopped() -> None:
            hold = self.promoter.hold_verified(
                "gone", handle, chain_of(path), CAP, monotonic_s() + 5
            )
            task = asyncio.ensure_future(hold)
            await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.sleep(0)
            writing = self.pool.blocks.counts.writing
            assert task.done() or writing == 0 or not self.store.gate.is_set()
            self.store.gate.set()
            await asyncio.wait([task])
            self.pool.blocks.release_owner("gone")

        self.run(stopped())

    @rule(handle=HANDLES)
    def release(self, handle: str) -> None:
        self.pool.blocks.release("w", handle)

    @rule()
    def worker_dies(self) -> None:
        self.pool.blocks.release_owner("w")

    @rule(count=st.integers(1, 5))
    def evict(self, count: int) -> None:
        self.pool.blocks.evict(count)

    @rule(slot=st.integers(0, NUM_SLOTS - 1), bit=BITS)
    def a_bit_flips_in_memory(self, slot: int, bit: int) -> None:
        self.pool.blocks.release_owner("w")  # who checked already is not checked again
        self.pool.segment.block(slot)[bit // 8] ^= 1 << bit % 8

    @rule(slot=st.integers(0, NUM_DISK_SLOTS - 1), bit=BITS)
    def a_bit_flips_on_disk(self, slot: int, bit: int) -> None:
        if slot in self.store.blocks:
            self.store.blocks[slot][0][bit // 8] ^= 1 << bit % 8

    @rule(path=PATHS)
    def the_disk_cannot_be_read(self, path: list[int]) -> None:
        self.store.fails_reading = True
        self.reuse(path, "r2/0")
        self.store.fails_reading = False

    @rule(path=PATHS, error=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def the_disk_cannot_be_written(self, path: list[int], error: int) -> None:
        self.store.fails_writing = error
        self.write_to_disk(path)
        self.store.fails_writing = None

    @rule(is_tearing=st.booleans())
    def writes_are_torn(self, is_tearing: bool) -> None:
        self.store.tears_writes = is_tearing

    @rule(path=PATHS)
    def drop(self, path: list[int]) -> None:
        key = chain_of(path)[-1]
        self.pool.blocks.drop_blocks(key)

        async def dropped() -> None:
            self.tier.drop(key)

        self.run(dropped())

    @rule()
    def restart_the_tier(self) -> None:
        """As at a new start of the process, which is a new incarnation for the index."""
        self.run(self.stop_tier())
        self.start_tier()
        list(drain(self.pool.blocks, self.tier.blocks))
        self.mirror = self.both_tiers()

    @rule()
    def publish(self) -> None:
        for change in drain(self.pool.blocks, self.tier.blocks):
            for _, key in change.removed:
                self.mirror.pop(key, None)
            for tier, run in change.stored:
                assert run.start == 0 or run.parent in self.mirror, "a parent came late"
                self.mirror.update(dict.fromkeys(run.keys, tier))
        expected = self.both_tiers()
        if self.tier.blocks is not None:
            assert self.mirror == expected

    def both_tiers(self) -> dict[BlockKey, str]:
        found: dict[BlockKey, str] = {}
        cursor: int | None = 0
        while cursor is not None:
            runs, cursor = page(self.pool.blocks, self.tier.blocks, cursor, 3)
            for tier, run in runs:
                for key in run.keys:
                    assert key not in found, "a block is in the inventory twice"
                    found[key] = tier
        return found

    # --- what always holds ---------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.blocks.check_integrity()
        assert self.pool.blocks.counts.writing == 0, "a slot is written by nobody"
        assert not self.pool.blocks.num_held("ssd")
        blocks = self.tier.blocks
        if blocks is not None:
            blocks.check_integrity()
            assert blocks.counts.writing == blocks.counts.held == 0

    def teardown(self) -> None:
        self.run(self.stop_tier())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.threads.shutdown()
        self.pool.close()


TierMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTiers = TierMachine.TestCase


def test_what_is_used_while_the_tier_loads_is_written_once_it_has() -> None:
    machine = TierMachine()
    machine.compute([0, 1], "r1/0")
    machine.run(machine.stop_tier())
    machine.tier = SsdTier(
        machine.pool, machine.store, num_threads=1, queue_blocks=4, on_change=lambda: None
    )
    machine.tier.want(chain_of([0, 1]))
    assert (machine.tier.state, machine.store.blocks) == ("loading", {})
    machine.task = machine.loop.create_task(machine.tier.run())
    machine.run(machine.settle())
    assert len(machine.store.blocks) == 2
    machine.teardown()


def test_writing_to_the_ssd_is_no_use_for_eviction() -> None:
    machine = TierMachine()
    heard: list[list[Slot]] = []
    machine.pool.blocks._policy.ended = heard.append  # type: ignore[method-assign,assignment]
    machine.compute([0, 1], "r1/0")
    machine.release("r1/0")
    assert [len(slots) for slots in heard] == [2]
    machine.write_to_disk([0, 1])
    assert len(machine.store.blocks) == 2
    assert [len(slots) for slots in heard] == [2]
    machine.teardown()
