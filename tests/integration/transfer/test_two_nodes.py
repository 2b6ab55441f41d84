"""Real transfer processes on one host: the whole way of blocks from one node to the other."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from shared.messages import subjects
from shared.messages.common import ErrorCode, FetchSource, NodeRef, Replica
from shared.messages.index import InventoryReply, InventoryRequest, ResidencyEvent
from shared.messages.pool import PullItem, SealBlock
from shared.messages.transfer import KvGeometry
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.worker.pool_client import PoolClient
from tests.support.deadline import until
from tests.support.transfer_node import (
    GEOMETRY,
    TransferHost,
    block_bytes_of,
    check_bytes,
    make_chain,
    request_ref,
    store_chain,
    view,
)

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
async def test_blocks_sealed_on_one_node_are_fetched_by_the_other(host: TransferHost) -> None:
    a = await host.attach(host.start("a"))
    b = await host.attach(host.start("b"))
    chain = make_chain(40, seed=1)
    await store_chain(a, "w", chain)
    await store_chain(b, "mine", chain[: 5 * 16])
    await b.release("mine")

    reply = await b.fetch("r", request_ref(), chain, FetchSource(node=a.node, num_blocks=40), 5_000)

    assert len(reply.blocks.slots) == 40
    assert reply.num_local == 5
    assert reply.fetched_bytes == 35 * GEOMETRY.block_bytes
    assert reply.transport == host.transport
    check_bytes(b, chain, reply.blocks)
    again = await b.lease("r2", chain)
    assert again.slots == reply.blocks.slots
    assert a.node != b.node
    a.close()
    b.close()


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
async def test_a_fetch_brings_what_the_source_has_and_no_more(host: TransferHost) -> None:
    a = await host.attach(host.start("a"))
    b = await host.attach(host.start("b"))
    chain = make_chain(10, seed=2)
    await store_chain(a, "w", chain[: 4 * 16])
    source = FetchSource(node=a.node, num_blocks=10)
    reply = await b.fetch("r", request_ref(), chain, source, 5_000)
    assert len(reply.blocks.slots) == 4
    check_bytes(b, chain, reply.blocks)
    wrong = FetchSource(node=NodeRef(id="nobody", incarnation="1"), num_blocks=10)
    reply = await b.fetch("r", request_ref(), chain, wrong, 5_000)
    assert len(reply.blocks.slots) == 4
    assert reply.fetched_bytes == 0
    a.close()
    b.close()


async def test_two_fetches_of_one_chain_at_once_move_it_once(host: TransferHost) -> None:
    a = await host.attach(host.start("a"))
    transfer = host.start("b")
    b, b2 = await host.attach(transfer), await host.attach(transfer, instance="other")
    chain = make_chain(60, seed=3)
    await store_chain(a, "w", chain)
    source = FetchSource(node=a.node, num_blocks=60)
    replies = await asyncio.gather(
        *(
            pool.fetch(f"r{number}", request_ref(), chain, source, 5_000)
            for number, pool in enumerate((b, b2, b, b2))
        )
    )
    assert sum(reply.fetched_bytes for reply in replies) == 60 * GEOMETRY.block_bytes
    for reply in replies:
        assert reply.blocks.slots == replies[0].blocks.slots
        check_bytes(b, chain, reply.blocks)
    for pool in (a, b, b2):
        pool.close()


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
async def test_layers_of_unfinished_and_private_slots_are_pulled(host: TransferHost) -> None:
    a = await host.attach(host.start("a"))
    b = await host.attach(host.start("b"))
    source = await a.allocate("r", 1)
    target = await b.allocate("r", 1)
    there, here = view(a, source.slots[0]), view(b, target.slots[0])
    there[:] = block_bytes_of(b"tail")
    here[:] = 0

    def item(first_layer: int, end_layer: int) -> PullItem:
        return PullItem(
            peer_slot=source.slots[0],
            peer_generation=source.generations[0],
            slot=target.slots[0],
            valid_tokens=5,
            first_layer=first_layer,
            end_layer=end_layer,
        )

    first = await b.pull("r", a.node, [item(0, 2)], 5_000)
    sealed = await a.seal(
        "r",
        0,
        b"",
        [SealBlock(slot=source.slots[0], generation=source.generations[0], valid_tokens=5)],
    )
    rest = await b.pull("r", a.node, [item(2, 4)], 5_000)

    assert first.moved_bytes == rest.moved_bytes == 2 * 2 * 5 * GEOMETRY.token_bytes
    planes = here.reshape(4, 2, 16, 64)
    assert np.array_equal(planes[:, :, :5], there.reshape(4, 2, 16, 64)[:, :, :5])
    assert not planes[:, :, 5:].any()
    block = SealBlock(
        slot=target.slots[0],
        generation=target.generations[0],
        valid_tokens=5,
        checksum=sealed.checksums[0],
    )
    assert (await b.seal("r", 0, b"", [block])).checksums == sealed.checksums
    a.close()
    b.close()


@pytest.mark.parametrize("host", ["local", "tcp"], indirect=True)
async def test_a_slot_in_another_use_is_not_pulled(host: TransferHost) -> None:
    a = await host.attach(host.start("a"))
    b = await host.attach(host.start("b"))
    source = await a.allocate("r", 1)
    target = await b.allocate("r", 1)
    await a.release("r")
    await a.allocate("r2", 1)
    item = PullItem(
        peer_slot=source.slots[0],
        peer_generation=source.generations[0],
        slot=target.slots[0],
        valid_tokens=16,
        first_layer=0,
        end_layer=4,
    )
    with pytest.raises(ServiceError) as lost:
        await b.pull("r", a.node, [item], 5_000)
    assert lost.value.code == ErrorCode.KV_LOST
    void = NodeRef(id=a.node.id, incarnation="gone")
    with pytest.raises(ServiceError) as gone:
        await b.pull("r", void, [item], 5_000)
    assert gone.value.code == ErrorCode.PEER_LOST
    with pytest.raises(ServiceError) as bad:
        await b.pull("another-handle", a.node, [item], 5_000)
    assert bad.value.field == "items.0.slot"
    a.close()
    b.close()


async def test_a_wrong_checksum_seals_nothing(host: TransferHost) -> None:
    pool = await host.attach(host.start("a"))
    chain = make_chain(2, seed=4)
    given = await pool.allocate("r", 2)
    blocks = [
        SealBlock(
            slot=slot, generation=generation, valid_tokens=16, key=chain[at : at + 16], checksum=at
        )
        for slot, generation, at in zip(given.slots, given.generations, (0, 16), strict=True)
    ]
    with pytest.raises(ServiceError) as error:
        await pool.seal("r", 0, chain, blocks)
    assert error.value.code == ErrorCode.KV_LOST
    assert error.value.field == "blocks.1.checksum"
    assert (await pool.lease("r2", chain)).slots == []
    pool.close()


async def test_another_model_is_refused_with_the_field_that_differs(host: TransferHost) -> None:
    transfer = host.start("a")
    first = await host.attach(transfer)
    with pytest.raises(ServiceError, match="root") as other_root:
        await host.attach(transfer, root=bytes(16))
    assert other_root.value.code == ErrorCode.FORMAT_MISMATCH
    geometry = KvGeometry(num_layers=5, block_tokens=16, token_bytes=64)
    with pytest.raises(ServiceError, match="num_layers: the pool has 4") as other_shape:
        await host.attach(transfer, geometry=geometry)
    assert other_shape.value.field == "num_layers"
    first.close()


async def test_workers_spread_over_the_nodes_of_a_host(host: TransferHost) -> None:
    host.start("a")
    host.start("b")
    pools = await asyncio.gather(*(host.attach(None, instance=f"w{n}") for n in range(4)))
    assert sorted(Counter(pool.node.id for pool in pools).values()) == [2, 2]
    for pool in pools:
        pool.close()


async def test_slots_are_capped_by_worker_and_refusals_are_retryable(host: TransferHost) -> None:
    pool = await host.attach(host.start("a"), max_slots=10)
    await pool.allocate("r", 8)
    with pytest.raises(ServiceError, match="this worker's share has 2") as error:
        await pool.allocate("r2", 3)
    assert error.value.code == ErrorCode.OVERLOADED
    assert error.value.is_retryable
    await pool.release("r")
    await pool.allocate("r2", 10)
    pool.close()


async def test_who_waits_for_slots_is_told_when_others_give_them_back(host: TransferHost) -> None:
    transfer = host.start("a", pool_bytes=20 * GEOMETRY.block_bytes)
    first = await host.attach(transfer, instance="first")
    second = await host.attach(transfer, instance="second")
    third = await host.attach(transfer, instance="third")
    await first.allocate("r1/0", 18)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(second.allocate("r2/1", 20, wait_s=30))
        await until(lambda: first.is_wanted("r1/0"), what="its slots are wanted")
        assert not await first.is_wanted("r1/2")
        stopped = group.create_task(_is_stopped(third, "r3/0"))
        with pytest.raises(ServiceError, match="3 slots wanted, the pool has 2 now"):
            await third.allocate("r4/0", 3)
        await third.release("r3/0")
        await stopped
        first.close()  # as if it had died
        assert len((await waiting).slots) == 20
    second.close()
    third.close()


async def _is_stopped(pool: PoolClient, handle: str) -> None:
    with pytest.raises(ServiceError, match="was stopped"):
        await pool.allocate(handle, 3, wait_s=30)


async def test_without_a_cap_a_worker_may_hold_half_of_the_pool(host: TransferHost) -> None:
    transfer = host.start("a", pool_bytes=20 * GEOMETRY.block_bytes)
    pool = await host.attach(transfer, max_slots=None)
    assert pool.max_slots == 10
    with pytest.raises(ServiceError, match="this worker's share has 10"):
        await pool.allocate("r", 11)
    pool.close()


async def test_events_and_inventory_tell_the_same(host: TransferHost, nats_url: str) -> None:
    bus = await Bus.connect(nats_url, name="test")
    transfer = host.start("a", pool_bytes=32 * GEOMETRY.block_bytes)
    events: list[ResidencyEvent] = []
    await bus.subscribe(subjects.index_events(transfer.node), ResidencyEvent, events.append)
    await bus.flush()
    pool = await host.attach(transfer)
    for seed in range(8):
        await store_chain(pool, f"r{seed}", make_chain(10, seed=100 + seed))
        await pool.release(f"r{seed}")

    async def inventory() -> InventoryReply:
        subject = subjects.transfer(transfer.node, "inventory")
        return await bus.request(subject, InventoryRequest(), InventoryReply, timeout_s=5)

    page = await inventory()
    await until(lambda: events and events[-1].seq >= page.seq, what="all events")
    assert [event.seq for event in events] == list(range(1, page.seq + 1))
    present: set[bytes] = set()
    for event in events:
        for removed in event.removed:
            gone = {removed.keys[at : at + 16] for at in range(0, len(removed.keys), 16)}
            assert gone <= present
            present -= gone
        for run in event.stored:
            present |= {run.keys[at : at + 16] for at in range(0, len(run.keys), 16)}
    held = b"".join(run.keys for run in page.stored)
    assert present == {held[at : at + 16] for at in range(0, len(held), 16)}
    assert len(present) == 32
    pool.close()
    await bus.close()


async def test_drain_refuses_newcomers_removes_its_files_and_exits_well(
    host: TransferHost,
) -> None:
    transfer = host.start("a")
    pool = await host.attach(transfer)
    await store_chain(pool, "r", make_chain(3, seed=5))
    assert len(host.folder.names()) == 3
    assert await asyncio.to_thread(transfer.end) == 0
    async with asyncio.timeout(5):
        await pool.lost.wait()
    assert host.folder.names() == []
    with pytest.raises(ServiceError) as error:
        await pool.lease("r", make_chain(3, seed=5))
    assert error.value.code == ErrorCode.POOL_LOST
    with pytest.raises(ServiceError, match="no pool to attach to"):
        await host.attach(None, timeout_s=0.2)
    pool.close()


async def test_nodes_use_what_both_have(host: TransferHost) -> None:
    """The source lets nobody map its memory, whatever the other one would like best."""
    a = await host.attach(host.start("a", settings={"MOONPOOL_TRANSPORTS": "tcp"}))
    b = await host.attach(host.start("b", settings={"MOONPOOL_TRANSPORTS": "local,tcp"}))
    chain = make_chain(12, seed=31)
    await store_chain(a, "w", chain)
    reply = await b.fetch("r", request_ref(), chain, FetchSource(node=a.node, num_blocks=12), 5_000)
    assert (len(reply.blocks.slots), reply.transport) == (12, "tcp")
    check_bytes(b, chain, reply.blocks)
    back = make_chain(5, seed=32)
    await store_chain(b, "w", back)
    source = FetchSource(node=b.node, num_blocks=5)
    reply = await a.fetch("r2", request_ref(), back, source, 5_000)
    assert (len(reply.blocks.slots), reply.transport) == (5, "tcp")
    a.close()
    b.close()


async def test_a_long_run_comes_from_all_that_hold_it(host: TransferHost) -> None:
    settings = {"MOONPOOL_TRANSPORTS": "local,tcp"}
    transfers = [host.start(name, pool_bytes=24 << 20, settings=settings) for name in "abc"]
    a, b, c = [await host.attach(each, max_slots=3000) for each in transfers]
    chain = make_chain(1100, seed=33)  # 9 MB
    for holder in (a, b):
        await store_chain(holder, "w", chain)
        await holder.release("w")
    source = FetchSource(
        node=a.node, num_blocks=1100, others=[Replica(node=b.node, num_blocks=1100)]
    )
    reply = await c.fetch("r", request_ref(), chain, source, 9_000)
    assert len(reply.blocks.slots) == 1100
    check_bytes(c, chain, reply.blocks)
    await c.release("r")
    transfers[0].kill()
    gone = make_chain(3, seed=34)
    await store_chain(b, "w", gone)
    short = FetchSource(node=a.node, num_blocks=3, others=[Replica(node=b.node, num_blocks=3)])
    reply = await c.fetch("r", request_ref(), gone, short, 9_000)
    assert len(reply.blocks.slots) == 3, "the second holder is asked when the first is dead"
    for pool in (a, b, c):
        pool.close()


async def test_a_release_does_not_wait_behind_calls_that_wait_for_what_it_frees(
    host: TransferHost,
) -> None:
    node = host.start("a", pool_bytes=8 * GEOMETRY.block_bytes)
    pool = await host.attach(node)
    await pool.allocate("holder/0", 8)

    async def take(handle: str) -> int:
        slots = (await pool.allocate(handle, 1, wait_s=10.0)).slots
        await pool.release(handle)
        return len(slots)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = [group.create_task(take(f"r{number}/0")) for number in range(100)]
        await asyncio.sleep(0)
        await pool.release("holder/0")
    assert [task.result() for task in waiting] == [1] * 100
    pool.close()
