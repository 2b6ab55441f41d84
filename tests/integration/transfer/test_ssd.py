"""The second tier of real transfers: evicted blocks come back, also after a restart; damage is a
miss."""

import os
from pathlib import Path

import pytest

from services.transfer.ssd_records import unpack
from shared.messages import subjects
from shared.messages.common import FetchSource
from shared.messages.index import InventoryReply, InventoryRequest, ResidencyEvent
from shared.messages.reports import NodeReport
from shared.messages.transfer import (
    DropReply,
    DropRequest,
    ReplicateReply,
    ReplicateRequest,
)
from shared.runtime.bus import Bus
from shared.worker.pool_client import PoolClient
from tests.support.deadline import until
from tests.support.transfer_node import (
    GEOMETRY,
    ROOT,
    TransferHost,
    TransferNode,
    check_bytes,
    make_chain,
    request_ref,
    store_chain,
)

pytestmark = pytest.mark.integration
SLOTS = 24
SMALL_POOL = SLOTS * GEOMETRY.block_bytes
NUM_BLOCKS = 12


def ssd(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "MOONPOOL_SSD_DIR": str(tmp_path / "ssd"),
        "MOONPOOL_SSD_BYTES": str(64 * GEOMETRY.block_bytes),
        **more,
    }


class Reports:
    """The last report of a node."""

    def __init__(self) -> None:
        self.last: NodeReport | None = None

    def hear(self, report: NodeReport) -> None:
        self.last = report

    @classmethod
    async def of(cls, bus: Bus, node: TransferNode) -> "Reports":
        reports = cls()
        await bus.subscribe(subjects.report("transfer", node.node), NodeReport, reports.hear)
        return reports

    async def until_on(self) -> None:
        """What is evicted or used again before the tier is loaded is not written."""
        await until(
            lambda: self.last is not None and self.last.ssd_state == "on",
            timeout_s=20,
            what="the SSD tier is loaded",
        )

    async def until_ssd_has(self, num_blocks: int) -> NodeReport:
        try:
            await until(
                lambda: self.last is not None and self.last.ssd_blocks == num_blocks, timeout_s=10
            )
        except AssertionError:
            raise AssertionError(f"not {num_blocks} blocks on the SSD: {self.last}") from None
        assert self.last is not None
        return self.last


async def use_twice(pool: PoolClient, chain: bytes) -> None:
    await store_chain(pool, "first/0", chain)
    await pool.release("first/0")
    await pool.lease("second/0", chain)
    await pool.release("second/0")


async def push_out(pool: PoolClient) -> None:
    """Fill the whole pool with something else."""
    await store_chain(pool, "filler/0", make_chain(SLOTS, seed=99))
    await pool.release("filler/0")


async def test_a_block_used_twice_and_evicted_comes_back_from_the_ssd(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    await push_out(pool)
    held = await pool.hold("third/0", chain)
    assert held.from_disk.num_blocks == NUM_BLOCKS
    assert held.from_disk.num_bytes == NUM_BLOCKS * GEOMETRY.block_bytes
    check_bytes(pool, chain, held.blocks)
    again = await pool.hold("third/0", chain)
    assert again.from_disk.num_blocks == 0
    pool.close()


async def test_a_block_used_once_is_not_written(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    pool = await host.attach(node)
    once, twice = make_chain(4, seed=1), make_chain(4, seed=2)
    await store_chain(pool, "r1/0", once)
    await pool.lease("r1/1", once)  # another attempt of the same request
    await pool.release("r1/0")
    reports = await Reports.of(bus, node)
    await use_twice(pool, twice)
    await reports.until_ssd_has(4)
    await pool.release("r1/1")
    await push_out(pool)
    assert (await pool.lease("r3/0", once)).slots == []
    assert len((await pool.lease("r3/0", twice)).slots) == 4
    pool.close()


async def test_a_copy_that_was_brought_ahead_of_need_is_no_use_of_it(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    source = host.start("a")
    node = host.start("b", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    far, pool = await host.attach(source), await host.attach(node)
    copied, twice = make_chain(4, seed=1), make_chain(4, seed=2)
    await store_chain(far, "r1/0", copied)
    reply = await bus.request(
        subjects.transfer(node.node, "replicate"),
        ReplicateRequest(keys=copied, source=far.node, remaining_ms=5_000),
        ReplicateReply,
        timeout_s=6,
    )
    assert reply.num_blocks == 4
    assert len((await pool.lease("first/0", copied)).slots) == 4
    reports = await Reports.of(bus, node)
    await use_twice(pool, twice)
    await reports.until_ssd_has(4)
    assert len((await pool.lease("second/0", copied)).slots) == 4
    await reports.until_ssd_has(8)
    far.close()
    pool.close()


async def test_demotion_writes_what_is_evicted_ahead_of_need(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    settings = ssd(
        tmp_path,
        MOONPOOL_SSD_WRITE="demotion",
        MOONPOOL_FREE_LOW="0.5",
        MOONPOOL_FREE_HIGH="0.5",
    )
    node = host.start("a", pool_bytes=SMALL_POOL, settings=settings)
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    await reports.until_on()
    chain = make_chain(20, seed=1)
    await store_chain(pool, "r1/0", chain)
    await pool.release("r1/0")
    # Half of the pool is to be free: the deepest 8 go, what they hang on is written before them.
    await reports.until_ssd_has(20)
    await until(
        lambda: reports.last is not None and reports.last.slots_free >= SLOTS // 2,
        timeout_s=10,
        what="half of the pool free",
    )
    held = await pool.hold("r2/0", chain)
    check_bytes(pool, chain, held.blocks)
    assert len(held.blocks.slots) == 20
    assert held.from_disk.num_blocks >= 8
    pool.close()


async def test_a_restarted_node_serves_its_ssd_blocks_and_says_so(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    node.kill()
    pool.close()
    events: list[ResidencyEvent] = []
    await bus.subscribe(subjects.index_events(node.node), ResidencyEvent, events.append)
    node.start()
    pool = await host.attach(node)
    await reports.until_ssd_has(NUM_BLOCKS)
    stored = [(run.tier, run.start, run.keys) for event in events for run in event.stored]
    assert stored == [("disk", 0, chain)]
    inventory = await bus.request(
        subjects.transfer(node.node, "inventory"), InventoryRequest(), InventoryReply, timeout_s=5
    )
    following = await bus.request(
        subjects.transfer(node.node, "inventory"),
        InventoryRequest(cursor=inventory.next_cursor or 0),
        InventoryReply,
        timeout_s=5,
    )
    assert [(run.tier, run.keys) for run in following.stored] == [("disk", chain)]
    assert following.next_cursor is None
    held = await pool.hold("r9/0", chain)
    assert held.from_disk.num_blocks == NUM_BLOCKS
    check_bytes(pool, chain, held.blocks)
    pool.close()


async def test_another_kv_format_finds_nothing_and_the_old_one_finds_its_blocks_again(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    for root, num_blocks in ((bytes(16), 0), (ROOT, NUM_BLOCKS)):
        node.kill()
        pool.close()
        node.start()
        pool = await host.attach(node, root=root)
        await until(
            lambda: reports.last is not None and reports.last.ssd_state == "on",
            timeout_s=10,
            what="the SSD tier is loaded",
        )
        assert len((await pool.lease("r/0", chain)).slots) == num_blocks
    pool.close()


async def test_a_bit_that_flips_on_the_ssd_is_a_miss(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    flip_on_disk(tmp_path, node, slot=5)
    await push_out(pool)
    held = await pool.hold("r3/0", chain)
    assert held.from_disk.num_blocks == 5
    check_bytes(pool, chain, held.blocks)
    report = await reports.until_ssd_has(5)
    assert report.ssd_bad_blocks_total == 1
    pool.close()


async def test_a_peer_gets_blocks_that_are_only_on_the_ssd(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    other = host.start("b")
    reports = await Reports.of(bus, node)
    here, there = await host.attach(node), await host.attach(other)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(here, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    await push_out(here)
    reply = await there.fetch(
        "r5/0",
        request_ref(),
        chain,
        FetchSource(node=here.node, num_blocks=NUM_BLOCKS),
        remaining_ms=5_000,
    )
    assert reply.fetched_bytes == NUM_BLOCKS * GEOMETRY.block_bytes
    check_bytes(there, chain, reply.blocks)
    here.close()
    there.close()


async def test_a_peer_that_lacks_the_end_of_a_chain_leaves_it_in_its_place_there(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    other = host.start("b")
    reports = await Reports.of(bus, node)
    here, there = await host.attach(node), await host.attach(other)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(here, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    await push_out(here)
    await store_chain(there, "r4/0", chain[: 4 * 16])
    events: list[ResidencyEvent] = []
    await bus.subscribe(subjects.index_events(node.node), ResidencyEvent, events.append)
    reply = await there.fetch(
        "r5/0",
        request_ref(),
        chain,
        FetchSource(node=here.node, num_blocks=NUM_BLOCKS),
        remaining_ms=5_000,
    )
    assert reply.fetched_bytes == (NUM_BLOCKS - 4) * GEOMETRY.block_bytes
    check_bytes(there, chain, reply.blocks)
    # The event of what pushed the chain out may come late: only the chain's blocks are of interest.
    place = {chain[at * 16 : at * 16 + 16]: at for at in range(NUM_BLOCKS)}

    def places() -> list[tuple[int, int]]:
        return [
            (place[run.keys[at : at + 16]], run.start + at // 16)
            for event in events
            for run in event.stored
            for at in range(0, len(run.keys), 16)
            if run.tier == "dram" and run.keys[at : at + 16] in place
        ]

    await until(
        lambda: bool(places()), timeout_s=10, what="what was read from the SSD is published"
    )
    assert [is_at for is_at, _ in places()] == [said for _, said in places()]
    here.close()
    there.close()


async def test_what_was_dropped_does_not_come_back_under_its_parent(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    node = host.start("a", pool_bytes=SMALL_POOL, settings=ssd(tmp_path))
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    await reports.until_on()
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await reports.until_ssd_has(NUM_BLOCKS)
    reply = await bus.request(
        subjects.transfer(node.node, "drop"),
        DropRequest(key=chain[4 * 16 : 5 * 16]),
        DropReply,
        timeout_s=5,
    )
    assert reply.num_disk_blocks == NUM_BLOCKS - 4
    index = tmp_path / "ssd" / node.node / ROOT.hex() / "index.bin"
    await until(
        lambda: sorted(each.place.index for each in unpack(index.read_bytes())) == [0, 1, 2, 3],
        timeout_s=5,
        what="the records of the others are gone",
    )
    pool.close()


async def test_a_folder_that_cannot_be_used_turns_the_tier_off_and_nothing_else(
    host: TransferHost, bus: Bus, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    settings = {"MOONPOOL_SSD_DIR": str(tmp_path / "file")}
    node = host.start("a", pool_bytes=SMALL_POOL, settings=settings)
    reports = await Reports.of(bus, node)
    pool = await host.attach(node)
    chain = make_chain(4, seed=1)
    await use_twice(pool, chain)
    await until(
        lambda: reports.last is not None and reports.last.ssd_state == "off",
        timeout_s=10,
        what="the tier is off",
    )
    assert "MOONPOOL_SSD_DIR" in node.log
    check_bytes(pool, chain, await pool.lease("r3/0", chain))
    pool.close()


def flip_on_disk(tmp_path: Path, node: TransferNode, slot: int) -> None:
    path = tmp_path / "ssd" / node.node / ROOT.hex() / "blocks-00000.bin"
    with path.open("r+b") as file:
        file.seek(slot * GEOMETRY.block_bytes + 77)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
