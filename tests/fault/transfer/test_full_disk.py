"""A disk that is really full under the SSD tier: a small file system of its own."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.messages import subjects
from shared.messages.reports import NodeReport
from shared.runtime.bus import Bus
from shared.worker.pool_client import PoolClient
from tests.support.deadline import until
from tests.support.transfer_node import (
    GEOMETRY,
    TransferHost,
    TransferNode,
    check_bytes,
    make_chain,
    store_chain,
)

pytestmark = pytest.mark.fault
DISK_BYTES = 4 << 20
SLOTS = 24
SMALL_POOL = SLOTS * GEOMETRY.block_bytes
NUM_BLOCKS = 12
TIMEOUT_S = 30


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="test")
    yield bus
    await bus.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MB. Asked for first, so that it goes last: nodes keep it busy."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "moonpool-test", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"needs the right to mount a tmpfs: {said.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class Tier:
    """What a node says of its SSD."""

    def __init__(self) -> None:
        self.last: NodeReport | None = None

    @classmethod
    async def of(cls, bus: Bus, node: TransferNode) -> "Tier":
        tier = cls()
        await bus.subscribe(subjects.report("transfer", node.node), NodeReport, tier._hear)
        return tier

    def _hear(self, report: NodeReport) -> None:
        self.last = report

    async def until_it_is(self, state: str, num_blocks: int = 0) -> None:
        await until(
            lambda: (
                self.last is not None
                and (self.last.ssd_state, self.last.ssd_blocks) == (state, num_blocks)
            ),
            timeout_s=TIMEOUT_S,
            what=f"the tier is {state} with {num_blocks} blocks",
        )


def start(host: TransferHost, disk: Path, num_bytes: int) -> TransferNode:
    settings = {"MOONPOOL_SSD_DIR": str(disk), "MOONPOOL_SSD_BYTES": str(num_bytes)}
    return host.start("a", pool_bytes=SMALL_POOL, settings=settings)


def fill(disk: Path) -> None:
    """Until the file system takes not one byte more."""
    with (disk / "of somebody else").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)
    assert os.statvfs(disk).f_bavail == 0


async def use_twice(pool: PoolClient, chain: bytes) -> None:
    await store_chain(pool, "first/0", chain)
    await pool.release("first/0")
    await pool.lease("second/0", chain)
    await pool.release("second/0")


async def push_out(pool: PoolClient) -> None:
    await store_chain(pool, "filler/0", make_chain(SLOTS, seed=99))
    await pool.release("filler/0")


async def test_a_disk_with_too_little_room_turns_the_tier_off_and_nothing_else(
    disk: Path, host: TransferHost, bus: Bus
) -> None:
    node = start(host, disk, num_bytes=2 * DISK_BYTES)
    tier = await Tier.of(bus, node)
    pool = await host.attach(node)
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await tier.until_it_is("off")
    assert "MOONPOOL_SSD_DIR" in node.log
    assert "No space left on device" in node.log
    check_bytes(pool, chain, await pool.lease("third/0", chain))
    pool.close()


async def test_a_disk_that_others_fill_later_still_takes_what_was_promised(
    disk: Path, host: TransferHost, bus: Bus
) -> None:
    node = start(host, disk, num_bytes=DISK_BYTES // 2)
    tier = await Tier.of(bus, node)
    pool = await host.attach(node)
    await tier.until_it_is("on")
    fill(disk)
    chain = make_chain(NUM_BLOCKS, seed=1)
    await use_twice(pool, chain)
    await tier.until_it_is("on", NUM_BLOCKS)
    await push_out(pool)
    held = await pool.hold("third/0", chain)
    assert held.from_disk.num_blocks == NUM_BLOCKS
    check_bytes(pool, chain, held.blocks)
    pool.close()
    node.end()
    again = start(host, disk, num_bytes=DISK_BYTES // 2)
    pool = await host.attach(again)
    await (await Tier.of(bus, again)).until_it_is("on", NUM_BLOCKS)
    found = await pool.hold("fourth/0", chain)
    check_bytes(pool, chain, found.blocks)
    assert found.from_disk.num_blocks == NUM_BLOCKS
    pool.close()
