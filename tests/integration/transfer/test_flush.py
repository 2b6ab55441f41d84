"""Operators empty a node and take it out of work: never under what somebody holds."""

from pathlib import Path
from typing import Any

import pytest

from shared.kv.block_keys import take
from shared.messages import subjects
from shared.messages.common import Empty, Ok
from shared.messages.conductor import StateReply
from shared.messages.reports import NodeReport
from shared.messages.transfer import (
    DescribeReply,
    FlushReply,
    FlushRequest,
    LeaseRelease,
    LeaseReply,
    LeaseRequest,
    NodeDrain,
    NodeDrainReply,
    PinReply,
    PinRequest,
)
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.transfer_node import (
    GEOMETRY,
    ROOT,
    TransferHost,
    TransferNode,
    check_bytes,
    make_chain,
    store_chain,
)

pytestmark = pytest.mark.integration


async def flush(bus: Bus, node: TransferNode, *, is_ssd: bool = False) -> FlushReply:
    subject = subjects.transfer(node.node, "flush")
    return await bus.request(subject, FlushRequest(is_ssd=is_ssd), FlushReply, timeout_s=10)


async def test_a_flush_leaves_what_is_leased_pinned_or_read(host: TransferHost, bus: Bus) -> None:
    node = host.start("a")
    pool = await host.attach(node)
    free, read, pinned, leased = (make_chain(6, seed=seed) for seed in range(1, 5))
    for number, chain in enumerate((free, read, pinned, leased)):
        await store_chain(pool, f"r{number}/0", chain)
        await pool.release(f"r{number}/0")
    await pool.lease("reader/0", take(read, 2))
    pin = PinRequest(keys=take(pinned, 3), ttl_ms=60_000)
    await bus.request(subjects.transfer(node.node, "pin"), pin, PinReply, timeout_s=5)
    lease = await _lease(bus, node, pool.node.incarnation, take(leased, 4))
    reply = await flush(bus, node)
    assert (reply.num_dram_blocks, reply.kept_dram_blocks) == (24 - 9, 9)
    assert (reply.num_disk_blocks, reply.kept_disk_blocks) == (0, 0)
    for chain, kept in ((free, 0), (read, 2), (pinned, 3), (leased, 4)):
        held = await pool.lease("look/0", chain)
        assert len(held.slots) == kept
        check_bytes(pool, chain, held)
        await pool.release("look/0")
    await pool.release("reader/0")
    release = LeaseRelease(lease_id=lease.lease_id)
    await bus.request(subjects.transfer(node.node, "release"), release, Ok, timeout_s=5)
    assert (await flush(bus, node)).kept_dram_blocks == 3
    pool.close()


async def _lease(bus: Bus, node: TransferNode, incarnation: str, keys: bytes) -> LeaseReply:
    described = await bus.request(
        subjects.transfer(node.node, "describe"), Empty(), DescribeReply, timeout_s=5
    )
    assert described.node.incarnation == incarnation
    request = LeaseRequest(
        holder=described.node, incarnation=incarnation, root=ROOT, keys=keys, ttl_ms=30_000
    )
    return await bus.request(
        subjects.transfer(node.node, "lease"), request, LeaseReply, timeout_s=5
    )


async def test_a_flush_of_more_than_one_batch_empties_all(host: TransferHost, bus: Bus) -> None:
    num_blocks = 5_000
    node = host.start("a", pool_bytes=num_blocks * GEOMETRY.block_bytes)
    pool = await host.attach(node, max_slots=num_blocks)
    for seed in range(5):
        await store_chain(pool, f"r{seed}/0", make_chain(num_blocks // 5, seed=seed))
        await pool.release(f"r{seed}/0")
    reply = await flush(bus, node)
    # Some slots are kept free ahead of need.
    assert num_blocks * 0.9 < reply.num_dram_blocks <= num_blocks
    assert reply.kept_dram_blocks == 0
    chain = make_chain(num_blocks - 1, seed=9)
    check_bytes(pool, chain, await store_chain(pool, "r9/0", chain))
    pool.close()


async def test_a_flush_of_the_ssd_is_for_good(host: TransferHost, bus: Bus, tmp_path: Path) -> None:
    settings = {
        "MOONPOOL_SSD_DIR": str(tmp_path / "ssd"),
        "MOONPOOL_SSD_BYTES": str(64 * GEOMETRY.block_bytes),
    }
    node = host.start("a", settings=settings)
    pool = await host.attach(node)
    chain = make_chain(8, seed=1)
    await store_chain(pool, "r1/0", chain)
    await pool.release("r1/0")
    reports: list[NodeReport] = []
    await bus.subscribe(subjects.report("transfer", node.node), NodeReport, reports.append)
    await pool.lease("r2/0", chain)  # its second use: it is written
    await pool.release("r2/0")
    await until(lambda: bool(reports) and reports[-1].ssd_blocks == 8, what="it is on the SSD")
    without = await flush(bus, node)
    assert (without.num_dram_blocks, without.kept_disk_blocks) == (8, 8)
    assert len((await pool.lease("r3/0", chain)).slots) == 8, "it comes back from the SSD"
    await pool.release("r3/0")
    reply = await flush(bus, node, is_ssd=True)
    assert (reply.num_dram_blocks, reply.num_disk_blocks) == (8, 8)
    assert (reply.kept_dram_blocks, reply.kept_disk_blocks) == (0, 0)
    assert (await pool.lease("r4/0", chain)).slots == []
    pool.close()
    node.end()
    node.start()
    again = await host.attach(node)
    assert (await again.lease("r5/0", chain)).slots == [], "it is not found after a restart either"
    again.close()


async def test_a_node_is_taken_out_of_work_and_back(host: TransferHost, bus: Bus) -> None:
    a, b = host.start("a"), host.start("b")
    here, there = await host.attach(a), await host.attach(b)
    chain = make_chain(6, seed=1)
    await store_chain(here, "r1/0", chain)
    await here.release("r1/0")
    await here.lease("r2/0", chain)  # used twice: worth handing over
    await here.release("r2/0")
    reports: dict[str, NodeReport] = {}

    def note(report: NodeReport) -> None:
        reports[report.id] = report

    async def drain(*, is_over: bool) -> NodeDrainReply:
        subject = subjects.transfer(a.node, "drain")
        request = NodeDrain(is_over=is_over, remaining_ms=10_000)
        return await bus.request(subject, request, NodeDrainReply, timeout_s=15)

    await bus.subscribe(subjects.report("transfer", "*"), NodeReport, note)
    await until(lambda: {a.node, b.node} <= set(reports), what="both report")

    async def as_conductor(msg: Any) -> None:
        await bus.publish(msg.reply, StateReply(conductor="c", nodes=list(reports.values())))

    conductor = await bus.client.subscribe(subjects.CONDUCTOR_STATE, cb=as_conductor)
    reply = await drain(is_over=False)
    assert (reply.state, reply.moved_bytes) == ("draining", 6 * GEOMETRY.block_bytes)
    assert len((await there.lease("r3/0", chain)).slots) == 6
    await until(lambda: reports[a.node].state == "draining", what="it is heard")
    with pytest.raises(ServiceError, match="drains"):
        await host.attach(a, instance="another", timeout_s=1)
    assert len((await here.lease("r4/0", chain)).slots) == 6, "what is there can be read"
    assert (await drain(is_over=True)).state == "ready"
    (await host.attach(a, instance="another")).close()
    await conductor.unsubscribe()
    here.close()
    there.close()
