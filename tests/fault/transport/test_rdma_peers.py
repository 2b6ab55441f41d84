"""Peers of RdmaTransport that are killed, stopped, replaced or fenced while something moves."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest

from shared.transport.base import Peer, PeerLost, Slice, WriteRefused
from shared.transport.rdma import RdmaTransport
from shared.transport.rdma_options import RdmaOptions, parse_options
from tests.contracts.transport_contract import (
    BLOCK_BYTES,
    NUM_SLOTS,
    assert_nothing_writes,
    fill,
    many,
    whole,
)
from tests.support.deadline import until
from tests.support.rdma_bench import RdmaBench, RdmaPeers, rdma_bench, rdma_peers
from tests.support.rdma_lanes import LANES, skip_without
from tests.support.rdma_peer import address_from, answer_of

pytestmark = pytest.mark.fault
RC = pytest.param("rc", marks=pytest.mark.rdma)
NOTICED_S = 1.0
SLACK_S = 1.0
"""The machine of the test may be busy, or emulated."""


@pytest.fixture(scope="module")
def peers() -> Iterator[RdmaPeers]:
    yield from rdma_peers()


@pytest.fixture
async def bench(request: pytest.FixtureRequest, peers: RdmaPeers) -> AsyncIterator[RdmaBench]:
    async with rdma_bench(peers, skip_without(request.param), writes="fenced") as bench:
        yield bench


def lanes(*names: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bench", names, indirect=True)


async def begin(bench: RdmaBench) -> asyncio.Future[int]:
    """Reads without an end, of which the first bytes have come."""
    for slot in range(NUM_SLOTS):
        fill(bench, slot)
        bench.own(slot)[:] = 0
    reading = asyncio.ensure_future(bench.transport.read(bench.peer, many(bench), timeout_s=60))
    await until(lambda: bench.own(1).any() or reading.done())
    assert not reading.done()
    return reading


@lanes(RC)
async def test_the_bytes_went_over_rdma(bench: RdmaBench) -> None:
    data = fill(bench, 1)
    assert await bench.transport.read(bench.peer, [whole(bench, 1, 2)], timeout_s=10) == 1
    assert np.array_equal(bench.own(2), data)
    used = bench.transport.lanes(bench.peer)
    assert any(each.transport.startswith("rc_") for each in used)
    assert all(each.is_rdma for each in used)


@lanes(*LANES)
async def test_a_killed_peer_is_noticed_within_a_second(bench: RdmaBench) -> None:
    told: list[str] = []
    bench.transport.on_peer_lost = lambda peer, reason: told.append(f"{peer.node} {reason}")
    readings = [await begin(bench)]
    readings += [
        asyncio.ensure_future(bench.transport.read(bench.peer, many(bench), timeout_s=60))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    bench.kill_peer()
    killed_s = time.monotonic()
    for reading in readings:
        with pytest.raises(PeerLost):
            await reading
    assert time.monotonic() - killed_s < NOTICED_S + SLACK_S
    await until(lambda: len(told) == 1)
    await assert_nothing_writes(bench)
    assert len(told) == 1


@lanes("tcp")
async def test_a_stopped_peer_ends_in_a_timeout_and_nothing_lands_when_it_goes_on(
    bench: RdmaBench,
) -> None:
    reading = await begin(bench)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    bench.process.send(signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        with pytest.raises(TimeoutError):
            await bench.transport.read(bench.peer, many(bench), timeout_s=0.5)
        assert time.monotonic() - started_s < 0.5 + 2.0
        for slot in range(NUM_SLOTS):
            bench.own(slot)[:] = 0x5A
    finally:
        bench.process.send(signal.SIGCONT)
    await asyncio.sleep(0.3)
    for slot in range(NUM_SLOTS):
        assert (bench.own(slot) == 0x5A).all()
    assert await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=10) == 1


@lanes("cma", RC)
async def test_a_stopped_peer_is_read_on_where_its_process_has_no_part_in_it(
    bench: RdmaBench,
) -> None:
    data = fill(bench, 2)
    await bench.transport.connect(bench.peer)
    bench.process.send(signal.SIGSTOP)
    try:
        assert await bench.transport.read(bench.peer, [whole(bench, 2, 3)], timeout_s=10) == 1
    finally:
        bench.process.send(signal.SIGCONT)
    assert np.array_equal(bench.own(3), data)


@lanes("tcp", RC)
async def test_a_stopped_peer_is_not_connected_to(bench: RdmaBench) -> None:
    bench.process.send(signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        with pytest.raises(TimeoutError):
            await bench.transport.read(bench.peer, [whole(bench, 2, 3)], timeout_s=0.5)
        assert time.monotonic() - started_s < 0.5 + 2.0
    finally:
        bench.process.send(signal.SIGCONT)
    assert await bench.transport.read(bench.peer, [whole(bench, 2, 3)], timeout_s=10) == 1


@lanes(*LANES)
async def test_closing_in_the_middle_of_reads_ends_them(bench: RdmaBench) -> None:
    reading = await begin(bench)
    await bench.transport.close()
    with pytest.raises(PeerLost, match="this node ends"):
        await reading
    await assert_nothing_writes(bench)


@lanes("tcp", RC)
async def test_writes_arrive_and_are_of_the_slots_use(bench: RdmaBench) -> None:
    for slot in range(3):
        bench.own(slot)[:] = slot + 1
    slices = [whole(bench, slot + 4, slot) for slot in range(3)]
    assert await bench.transport.write(bench.peer, slices, timeout_s=10) == 3
    for slot in range(3):
        assert (bench.theirs(slot + 4) == slot + 1).all()
    bench.reuse(5)
    assert await bench.transport.write(bench.peer, slices, timeout_s=10) == 1


@lanes("cma")
async def test_what_cannot_be_fenced_is_not_written(bench: RdmaBench) -> None:
    with pytest.raises(WriteRefused, match="owner alone"):
        await bench.transport.write(bench.peer, [whole(bench, 1, 1)], timeout_s=5)


@lanes("tcp", RC)
async def test_after_a_fence_nothing_that_a_peer_wrote_lands(bench: RdmaBench) -> None:
    """The peer is the writer here, this process the owner of the pool."""
    me, peer = bench.transport, bench.process
    fill(bench, 0)
    slices = [asdict(Slice(n % NUM_SLOTS, 1, 0, 0, BLOCK_BYTES)) for n in range(20_000)]
    bench.mine.bytes[:] = 0
    peer.ask("write", node="me", address=answer_of(me.describe()), slices=slices)
    await until(lambda: bench.own(3).any(), what="first bytes of the peer")
    before = me.describe()
    await me.fence()
    await assert_nothing_writes(bench)
    (outcome,) = await asyncio.to_thread(peer.ask, "written")
    assert "node me" in str(outcome)
    # With the new address, and only with it, it is let in again.
    assert me.describe().worker_address != before.worker_address
    part = asdict(Slice(2, 1, 0, 0, BLOCK_BYTES))
    peer.ask("write", node="me2", address=answer_of(me.describe()), slices=[part])
    assert (await asyncio.to_thread(peer.ask, "written"))[-1] == 1
    assert np.array_equal(bench.own(2), bench.theirs(0))


@lanes("tcp")
async def test_a_fence_of_the_peer_ends_reads_from_it(bench: RdmaBench) -> None:
    reading = await begin(bench)
    address = address_from(await asyncio.to_thread(bench.process.ask, "fence"))
    with pytest.raises(PeerLost):
        await reading
    await assert_nothing_writes(bench)
    again = Peer("again", "1", rdma=address)
    bench.process.peer = replace(bench.process.peer, rdma=address)
    assert await bench.transport.read(again, [whole(bench, 1, 1)], timeout_s=10) == 1


@lanes("cma", "tcp", RC)
async def test_a_peer_without_a_life_is_lost_even_where_its_memory_can_be_reached(
    bench: RdmaBench,
) -> None:
    """As when its pid belongs to another process by now."""
    await bench.transport.connect(bench.peer)
    lock = bench.process.files.lock
    hidden = lock.with_suffix(".hidden")
    lock.rename(hidden)
    try:
        with pytest.raises(PeerLost, match="its process is gone"):
            await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=5)
    finally:
        hidden.rename(lock)


@lanes("tcp", RC)
async def test_an_address_of_nobody_is_lost(bench: RdmaBench) -> None:
    assert bench.peer.rdma is not None
    for address in (b"", bytes(40), bench.peer.rdma.worker_address[:20]):
        nobody = Peer("nobody", "1", rdma=replace(bench.peer.rdma, worker_address=address))
        with pytest.raises(PeerLost):
            await bench.transport.read(nobody, [whole(bench, 1, 1)], timeout_s=8)
        bench.transport.abort(nobody)


@lanes("cma", "tcp", RC)
async def test_idle_costs_nothing(bench: RdmaBench) -> None:
    assert await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=10) == 1
    await asyncio.sleep(0.2)
    before = bench.transport.num_wakeups, time.process_time()
    await asyncio.sleep(2.0)
    after = bench.transport.num_wakeups, time.process_time()
    assert after[0] - before[0] <= 2
    assert after[1] - before[1] < 0.1
    assert await asyncio.to_thread(bench.process.ask, "wakeups") < 10_000


@pytest.mark.parametrize("lane", ["tcp"])
async def test_connections_are_capped_and_made_again_on_demand(lane: str, peers: RdmaPeers) -> None:
    options = skip_without(lane)
    async with rdma_bench(peers, options) as bench:
        capped = await RdmaTransport.open(
            bench.mine, RdmaOptions(ucx_options=parse_options(options), max_endpoints=2)
        )
        try:
            names = [replace(bench.peer, node=f"peer{n}") for n in range(5)]
            for peer in [*names, *names]:
                assert await capped.read(peer, [whole(bench, 1, 1)], timeout_s=5) == 1
                assert len([each for each in names if capped.lanes(each)]) <= 2
        finally:
            await capped.close()
