"""Workers and transfers that are killed: everything they held comes back, nothing wrong is read."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process

import numpy as np
import pytest

from shared.messages import subjects
from shared.messages.common import ErrorCode, FetchSource, NodeRef
from shared.messages.transfer import LeaseReply, LeaseRequest
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
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
    view,
)

pytestmark = pytest.mark.fault
NUM_SLOTS = 64
POOL_BYTES = NUM_SLOTS * GEOMETRY.block_bytes

HOLDING_WORKER = """
import asyncio, sys
from pathlib import Path
from tests.support.transfer_node import GEOMETRY, ROOT, make_chain, store_chain
from shared.worker.pool_client import PoolClient

async def main():
    pool = await PoolClient.attach(
        Path(sys.argv[1]), node=sys.argv[2], instance="doomed", incarnation="1", role="decode",
        root=ROOT, geometry=GEOMETRY, max_slots=64, timeout_s=10,
    )
    chain = make_chain(10, seed=50)
    await store_chain(pool, "sealed", chain)
    await pool.lease("leased", chain)
    await pool.allocate("writing", 50)
    print("holding", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start_worker(host: TransferHost, transfer: TransferNode) -> Process:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDING_WORKER,
        str(host.folder.path),
        transfer.node,
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    async with asyncio.timeout(20):
        assert await worker.stdout.readline() == b"holding\n"
    return worker


async def can_allocate(pool: PoolClient, count: int) -> bool:
    try:
        await pool.allocate("probe", count)
    except ServiceError as error:
        if error.code != ErrorCode.OVERLOADED:
            raise
        return False
    await pool.release("probe")
    return True


async def test_a_killed_worker_gives_back_all_it_held(host: TransferHost) -> None:
    transfer = host.start("a", pool_bytes=POOL_BYTES)
    pool = await host.attach(transfer)
    worker = await start_worker(host, transfer)
    assert not await can_allocate(pool, 10)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await until(lambda: can_allocate(pool, NUM_SLOTS), timeout_s=5, what="all slots are back")
    pool.close()


async def test_a_stopped_worker_costs_its_share_and_no_more(host: TransferHost) -> None:
    transfer = host.start("a", pool_bytes=POOL_BYTES)
    pool = await host.attach(transfer)
    worker = await start_worker(host, transfer)
    worker.send_signal(signal.SIGSTOP)
    try:
        assert await can_allocate(pool, NUM_SLOTS - 60)
        assert not await can_allocate(pool, NUM_SLOTS - 59)
    finally:
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    pool.close()


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02])
async def test_a_source_killed_in_mid_fetch_shortens_the_run(
    host: TransferHost, delay_s: float
) -> None:
    source = host.start("a", pool_bytes=16 << 20)
    a = await host.attach(source, max_slots=2000)
    b = await host.attach(host.start("b", pool_bytes=16 << 20), max_slots=2000)
    chain = make_chain(1500, seed=9)
    await store_chain(a, "w", chain)
    fetching = asyncio.ensure_future(
        b.fetch("r", request_ref(), chain, FetchSource(node=a.node, num_blocks=1500), 5_000)
    )
    await asyncio.sleep(delay_s)
    await asyncio.to_thread(source.kill)
    async with asyncio.timeout(8):
        reply = await fetching
    check_bytes(b, chain, reply.blocks)
    await b.release("r")
    await b.allocate("all", 2000)
    async with asyncio.timeout(5):
        await a.lost.wait()
    a.close()
    b.close()


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
async def test_a_stopped_source_costs_a_bounded_wait(host: TransferHost) -> None:
    source = host.start("a")
    a, b = await host.attach(source), await host.attach(host.start("b"))
    chain = make_chain(20, seed=10)
    await store_chain(a, "w", chain)
    source.send(signal.SIGSTOP)
    fetch_source = FetchSource(node=a.node, num_blocks=20)
    async with asyncio.timeout(4):
        reply = await b.fetch("r", request_ref(), chain, fetch_source, 10_000)
    assert reply.blocks.slots == []
    with pytest.raises(ServiceError) as error:
        await asyncio.wait_for(a.pull("w", b.node, [], 1), 5)
    assert error.value.code == ErrorCode.DEADLINE
    source.send(signal.SIGCONT)
    reply = await b.fetch("r", request_ref(), chain, fetch_source, 10_000)
    assert len(reply.blocks.slots) == 20
    a.close()
    b.close()


async def test_release_stops_a_fetch_that_waits_and_frees_all_of_it(host: TransferHost) -> None:
    source = host.start("a", pool_bytes=POOL_BYTES)
    a, b = await host.attach(source), await host.attach(host.start("b", pool_bytes=POOL_BYTES))
    chain = make_chain(20, seed=15)
    await store_chain(a, "w", chain)
    source.send(signal.SIGSTOP)
    fetch_source = FetchSource(node=a.node, num_blocks=20)
    fetching = asyncio.ensure_future(b.fetch("r", request_ref(), chain, fetch_source, 9_000))
    await asyncio.sleep(0.1)
    assert not fetching.done()
    async with asyncio.timeout(0.8):
        await b.release("r")
        with pytest.raises(ServiceError) as error:
            await fetching
    assert error.value.code == ErrorCode.CANCELLED
    assert await can_allocate(b, NUM_SLOTS)
    source.send(signal.SIGCONT)
    a.close()
    b.close()


async def test_a_draining_node_finishes_its_fetch_and_takes_no_new_one(
    host: TransferHost,
) -> None:
    source, sink = host.start("a"), host.start("b")
    a, b = await host.attach(source), await host.attach(sink)
    chain = make_chain(20, seed=16)
    await store_chain(a, "w", chain)
    await store_chain(b, "mine", chain[:48])
    source.send(signal.SIGSTOP)
    fetch_source = FetchSource(node=a.node, num_blocks=20)
    fetching = asyncio.ensure_future(b.fetch("r", request_ref(), chain, fetch_source, 9_000))
    await asyncio.sleep(0.1)
    sink.send(signal.SIGTERM)

    async def is_draining() -> bool:
        try:
            await b.fetch("r2", request_ref(), chain[:16], fetch_source, 9_000)
        except ServiceError as error:
            return error.code == ErrorCode.DRAINING
        return False

    await until(is_draining, timeout_s=3, what="draining")
    reply = await fetching
    assert len(reply.blocks.slots) == 3
    check_bytes(b, chain, reply.blocks)
    assert await asyncio.to_thread(sink.wait) == 0
    assert not [name for name in host.folder.names() if name.startswith(f"{sink.node}.")]
    source.send(signal.SIGCONT)
    a.close()
    b.close()


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
async def test_a_restart_under_the_same_name_is_another_node(host: TransferHost) -> None:
    source = host.start("a")
    a, b = await host.attach(source), await host.attach(host.start("b"))
    chain = make_chain(6, seed=11)
    await store_chain(a, "w", chain)
    first = FetchSource(node=a.node, num_blocks=6)
    assert len((await b.fetch("r", request_ref(), chain[:32], first, 5_000)).blocks.slots) == 2
    await asyncio.to_thread(source.kill)
    left = set(host.folder.names())
    assert len(left) == 6

    await asyncio.to_thread(source.start)

    assert not {name for name in host.folder.names() if a.node.incarnation in name}
    again = await host.attach(source)
    assert again.node.id == a.node.id
    assert again.node.incarnation != a.node.incarnation
    await store_chain(again, "w", chain[:48])
    stale = await b.fetch("r", request_ref(), chain, first, 5_000)
    assert len(stale.blocks.slots) == 2
    fresh = FetchSource(node=again.node, num_blocks=3)
    reply = await b.fetch("r", request_ref(), chain, fresh, 5_000)
    assert len(reply.blocks.slots) == 3
    check_bytes(b, chain, reply.blocks)
    for pool in (a, b, again):
        pool.close()


async def test_a_starting_transfer_leaves_the_files_of_a_living_one_alone(
    host: TransferHost,
) -> None:
    a = await host.attach(host.start("a"))
    names = set(host.folder.names())
    b = await host.attach(host.start("b"))
    assert names < set(host.folder.names())
    await a.allocate("r", 1)
    a.close()
    b.close()


async def test_a_lease_of_another_node_ends_by_time(host: TransferHost, nats_url: str) -> None:
    transfer = host.start("a", pool_bytes=POOL_BYTES)
    pool = await host.attach(transfer)
    chain = make_chain(20, seed=12)
    await store_chain(pool, "w", chain)
    await pool.release("w")
    bus = await Bus.connect(nats_url, name="peer")
    request = LeaseRequest(
        holder=NodeRef(id="peer", incarnation="1"),
        incarnation=pool.node.incarnation,
        root=ROOT,
        keys=chain,
        ttl_ms=400,
    )
    subject = subjects.transfer(transfer.node, "lease")
    lease = await bus.request(subject, request, LeaseReply, timeout_s=5)
    assert len(lease.slots) == 20
    assert not await can_allocate(pool, NUM_SLOTS)
    await until(lambda: can_allocate(pool, NUM_SLOTS), timeout_s=3, what="the lease is over")
    assert not pool.generations_hold(lease.slots, lease.generations)
    void = request.model_copy(update={"incarnation": "gone"})
    with pytest.raises(ServiceError) as error:
        await bus.request(subject, void, LeaseReply, timeout_s=5)
    assert error.value.code == ErrorCode.VOID_INCARNATION
    pool.close()
    await bus.close()


async def test_damaged_bytes_are_a_miss_and_leave_the_readable_set(host: TransferHost) -> None:
    a, b = await host.attach(host.start("a")), await host.attach(host.start("b"))
    chain = make_chain(8, seed=13)
    sealed = await store_chain(a, "w", chain)
    before = await a.lease("early", chain)
    view(a, sealed.slots[5])[100] ^= np.uint8(4)

    reply = await b.fetch("r", request_ref(), chain, FetchSource(node=a.node, num_blocks=8), 5_000)

    assert len(reply.blocks.slots) == 5
    check_bytes(b, chain, reply.blocks)

    async def is_quarantined() -> bool:
        return not a.generations_hold(before.slots, before.generations)

    # The source hears of it, looks itself, and whoever reads in place finds out.
    await until(is_quarantined, timeout_s=5, what="the damaged block is out")
    assert a.generations_hold(before.slots[:5], before.generations[:5])
    assert len((await a.lease("late", chain)).slots) == 5
    refilled = await store_chain(a, "again", chain, start=5)
    assert len((await a.lease("last", chain)).slots) == 8
    check_bytes(a, chain, (await a.lease("last", chain)))
    assert refilled.slots[0] != sealed.slots[5]
    a.close()
    b.close()


async def test_damaged_bytes_are_found_when_a_block_is_leased_in_place(
    host: TransferHost,
) -> None:
    pool = await host.attach(host.start("a"))
    chain = make_chain(8, seed=14)
    sealed = await store_chain(pool, "w", chain)
    await pool.release("w")
    view(pool, sealed.slots[2])[0] ^= np.uint8(1)
    assert len((await pool.lease("r", chain)).slots) == 2
    assert len((await pool.lease("r2", chain)).slots) == 2
    pool.close()


@pytest.mark.parametrize("suffix", [".seg", ".sock"])
async def test_a_node_whose_files_are_deleted_ends_instead_of_being_out_of_reach(
    host: TransferHost, suffix: str
) -> None:
    node = host.start("a")
    pool = await host.attach(node)
    for name in host.folder.names(suffix):
        (host.folder.path / name).unlink()
    assert await asyncio.to_thread(node.wait) == 1
    assert "was deleted while the node ran" in node.log
    async with asyncio.timeout(5):
        await pool.lost.wait()
    pool.close()
    assert host.folder.names() == []
