"""What operators ask of a node: pin, drop, replicate."""

import pytest

from shared.kv.block_keys import take
from shared.messages import subjects
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.transfer import (
    DropReply,
    DropRequest,
    PinReply,
    PinRequest,
    ReplicateReply,
    ReplicateRequest,
)
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.transfer_node import (
    GEOMETRY,
    TransferHost,
    TransferNode,
    check_bytes,
    make_chain,
    store_chain,
)

pytestmark = pytest.mark.integration
SLOTS = 24
POOL = SLOTS * GEOMETRY.block_bytes


async def pin(bus: Bus, node: TransferNode, **fields: object) -> PinReply:
    request = PinRequest.model_validate(fields)
    return await bus.request(subjects.transfer(node.node, "pin"), request, PinReply, timeout_s=5)


async def test_a_pinned_prefix_outlives_eviction_and_its_pin_can_be_ended(
    host: TransferHost, bus: Bus
) -> None:
    node = host.start("a", pool_bytes=POOL)
    pool = await host.attach(node)
    chain, filler = make_chain(5, seed=1), make_chain(SLOTS - 5, seed=2)
    await store_chain(pool, "r1/0", chain)
    await pool.release("r1/0")
    made = await pin(bus, node, keys=chain, ttl_ms=60_000)
    assert (made.num_blocks, made.pinned_blocks, made.max_pinned_blocks) == (5, 5, 6)
    await store_chain(pool, "r2/0", filler)
    await pool.release("r2/0")
    await store_chain(pool, "r3/0", make_chain(SLOTS - 5, seed=3))
    await pool.release("r3/0")
    check_bytes(pool, chain, await pool.lease("r4/0", chain))
    await pool.release("r4/0")
    ended = await pin(bus, node, pin_id=made.pin_id, ttl_ms=0)
    assert ended.pinned_blocks == 0
    await store_chain(pool, "r5/0", make_chain(SLOTS, seed=4))
    assert (await pool.lease("r6/0", chain)).slots == []
    pool.close()


async def test_a_pin_ends_by_its_time(host: TransferHost, bus: Bus) -> None:
    node = host.start("a", pool_bytes=POOL)
    pool = await host.attach(node)
    chain = make_chain(3, seed=1)
    await store_chain(pool, "r1/0", chain)
    made = await pin(bus, node, keys=chain, ttl_ms=50)

    async def has_ended() -> bool:
        return (await pin(bus, node, keys=b"", ttl_ms=0)).pinned_blocks == 0

    await until(has_ended, timeout_s=5, what="the pin is over")
    with pytest.raises(ServiceError, match="pin_id") as refused:
        await pin(bus, node, pin_id=made.pin_id, ttl_ms=1_000)
    assert refused.value.info.field == "pin_id"
    pool.close()


async def test_pins_over_the_budget_and_for_tenants_are_refused(
    host: TransferHost, bus: Bus
) -> None:
    node = host.start("a", pool_bytes=POOL)
    pool = await host.attach(node)
    chain = make_chain(7, seed=1)
    await store_chain(pool, "r1/0", chain)
    with pytest.raises(ServiceError, match="MOONPOOL_PIN_SHARE") as refused:
        await pin(bus, node, keys=chain)
    assert refused.value.code == ErrorCode.OVERLOADED
    assert (await pin(bus, node, keys=take(chain, 6))).num_blocks == 6
    with pytest.raises(ServiceError, match="tenant"):
        await pin(bus, node, keys=take(chain, 1), tenant="somebody")
    pool.close()


async def test_a_dropped_block_and_what_follows_it_is_gone(host: TransferHost, bus: Bus) -> None:
    node = host.start("a", pool_bytes=POOL)
    pool = await host.attach(node)
    chain = make_chain(6, seed=1)
    await store_chain(pool, "r1/0", chain)
    request = DropRequest(key=chain[2 * 16 : 3 * 16])
    subject = subjects.transfer(node.node, "drop")
    reply = await bus.request(subject, request, DropReply, timeout_s=5)
    assert (reply.num_dram_blocks, reply.num_disk_blocks) == (4, 0)
    assert len((await pool.lease("r2/0", chain)).slots) == 2
    again = await bus.request(subject, request, DropReply, timeout_s=5)
    assert again.num_dram_blocks == 0
    pool.close()


async def test_a_node_brings_a_copy_from_another_one(host: TransferHost, bus: Bus) -> None:
    a, b = host.start("a"), host.start("b")
    here, there = await host.attach(a), await host.attach(b)
    chain = make_chain(20, seed=1)
    await store_chain(here, "r1/0", chain)
    reply = await replicate(bus, b, chain, here.node)
    assert (reply.num_blocks, reply.moved_bytes) == (20, 20 * GEOMETRY.block_bytes)
    held = await there.lease("r2/0", chain)
    assert len(held.slots) == 20
    check_bytes(there, chain, held)
    again = await replicate(bus, b, chain, here.node)
    assert (again.num_blocks, again.moved_bytes) == (20, 0)
    nobody = await replicate(bus, b, make_chain(3, seed=2), NodeRef(id="nobody", incarnation="1"))
    assert (nobody.num_blocks, nobody.moved_bytes) == (0, 0)
    here.close()
    there.close()


async def replicate(bus: Bus, node: TransferNode, chain: bytes, source: NodeRef) -> ReplicateReply:
    return await bus.request(
        subjects.transfer(node.node, "replicate"),
        ReplicateRequest(keys=chain, source=source, remaining_ms=5_000),
        ReplicateReply,
        timeout_s=6,
    )


async def test_an_operation_on_a_node_without_a_model_says_so(host: TransferHost, bus: Bus) -> None:
    node = host.start("a")
    with pytest.raises(ServiceError, match="no worker has attached"):
        await pin(bus, node, keys=b"")


async def test_keys_that_are_cut_are_named(host: TransferHost, bus: Bus) -> None:
    node = host.start("a")
    pool = await host.attach(node)
    with pytest.raises(ServiceError, match="keys"):
        await pin(bus, node, keys=b"short")
    with pytest.raises(ServiceError, match="keys"):
        await replicate(bus, node, b"short", pool.node)
    pool.close()


async def test_a_part_of_a_chain_is_no_chain_to_replicate(host: TransferHost, bus: Bus) -> None:
    a, b = host.start("a"), host.start("b")
    here, there = await host.attach(a), await host.attach(b)
    chain = make_chain(6, seed=1)
    await store_chain(here, "r1/0", chain)
    for part, num_blocks in ((chain[2 * 16 :], 0), (chain, 6)):
        request = ReplicateRequest(keys=part, source=here.node, remaining_ms=5_000)
        reply = await bus.request(
            subjects.transfer(b.node, "replicate"), request, ReplicateReply, timeout_s=10
        )
        assert reply.num_blocks == num_blocks
    here.close()
    there.close()
