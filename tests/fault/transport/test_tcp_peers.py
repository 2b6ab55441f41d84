"""Peers of TcpTransport that are killed, stopped, cut off or damaged on the way."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from shared.transport.base import Peer, PeerLost, Slice
from shared.transport.segment import Segment
from shared.transport.tcp import TcpTransport
from tests.support.deadline import until
from tests.support.tcp_peer import TcpPeer, content
from tests.support.tcp_proxy import Faults, Proxy

pytestmark = pytest.mark.fault
SLOTS, BLOCK_BYTES = 8, 1 << 20
NOTICED_S = 1.0
SLACK_S = 1.0
"""The machine of the test may be busy."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[TcpPeer]:
    with TcpPeer(tmp_path, num_slots=SLOTS, block_bytes=BLOCK_BYTES) as peer:
        yield peer


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Segment]:
    segment = Segment.create(tmp_path / "me.1.seg", num_slots=SLOTS, block_bytes=BLOCK_BYTES)
    yield segment
    segment.close()


@pytest.fixture
async def transport(mine: Segment) -> AsyncIterator[TcpTransport]:
    transport = TcpTransport(mine, "me", "1", num_streams=2)
    yield transport
    await transport.close()


def endless() -> list[Slice]:
    return [Slice(n % SLOTS, 1, n % SLOTS, 0, BLOCK_BYTES) for n in range(50_000)]


async def assert_nothing_lands(mine: Segment) -> None:
    mine.bytes[:] = 0x5A
    await asyncio.sleep(0.3)
    assert (mine.bytes == 0x5A).all()


async def test_a_killed_peer_is_noticed_at_once(
    process: TcpPeer, transport: TcpTransport, mine: Segment
) -> None:
    told: list[str] = []
    transport.on_peer_lost = lambda peer, reason: told.append(reason)
    reading = asyncio.ensure_future(transport.read(process.peer, endless(), timeout_s=60))
    await until(lambda: mine.block(3).any())
    process.kill()
    killed_s = time.monotonic()
    with pytest.raises(PeerLost):
        await reading
    assert time.monotonic() - killed_s < NOTICED_S + SLACK_S
    await until(lambda: len(told) == 1)
    await assert_nothing_lands(mine)


async def test_a_stopped_peer_is_left_within_a_second_and_nothing_lands_when_it_goes_on(
    process: TcpPeer, transport: TcpTransport, mine: Segment
) -> None:
    reading = asyncio.ensure_future(transport.read(process.peer, endless(), timeout_s=60))
    await until(lambda: mine.block(3).any())
    process.stop()
    stopped_s = time.monotonic()
    with pytest.raises(PeerLost, match="not a byte"):
        await reading
    assert time.monotonic() - stopped_s < NOTICED_S + SLACK_S
    mine.bytes[:] = 0x5A
    process.go_on()
    await assert_nothing_lands(mine)
    assert await transport.read(process.peer, [Slice(1, 1, 2, 0, BLOCK_BYTES)], timeout_s=10) == 1
    assert np.array_equal(mine.block(2), content(1, BLOCK_BYTES))


async def test_a_peer_that_does_not_take_the_greeting_is_lost_in_time(
    process: TcpPeer, transport: TcpTransport
) -> None:
    process.stop()
    started_s = time.monotonic()
    with pytest.raises(PeerLost):
        await transport.connect(process.peer)
    assert time.monotonic() - started_s < 2 * NOTICED_S + SLACK_S


def through(process: TcpPeer, proxy: Proxy) -> Peer:
    address = process.peer.tcp
    assert address is not None
    return replace(process.peer, tcp=replace(address, port=proxy.port))


def port_of(process: TcpPeer) -> int:
    assert process.peer.tcp is not None
    return process.peer.tcp.port


async def test_a_cut_stream_is_a_lost_peer_that_can_be_connected_again(
    process: TcpPeer, transport: TcpTransport, mine: Segment
) -> None:
    faults = Faults(cut_after=3 * BLOCK_BYTES)
    async with Proxy(port_of(process), faults, is_recording=False) as proxy:
        peer = through(process, proxy)
        with pytest.raises(PeerLost):
            await transport.read(peer, endless(), timeout_s=30)
        faults.cut_after = None
        await assert_nothing_lands(mine)
        assert await transport.read(peer, endless()[:SLOTS], timeout_s=30) == SLOTS
    assert np.array_equal(mine.block(7), content(7, BLOCK_BYTES))


async def test_bytes_that_are_held_back_end_the_read(
    process: TcpPeer, transport: TcpTransport, mine: Segment
) -> None:
    faults = Faults(hold_after=5 * BLOCK_BYTES)
    async with Proxy(port_of(process), faults, is_recording=False) as proxy:
        with pytest.raises(PeerLost, match="not a byte"):
            await transport.read(through(process, proxy), endless(), timeout_s=30)
        await assert_nothing_lands(mine)


async def test_a_slow_way_is_no_lost_peer(
    process: TcpPeer, transport: TcpTransport, mine: Segment
) -> None:
    faults = Faults(bytes_per_s=2 * BLOCK_BYTES)
    async with Proxy(port_of(process), faults, is_recording=False) as proxy:
        done = await transport.read(through(process, proxy), endless()[:4], timeout_s=30)
    assert done == 4
    assert np.array_equal(mine.block(3), content(3, BLOCK_BYTES))


async def test_a_changed_byte_shows_in_the_digest(
    process: TcpPeer, transport: TcpTransport, mine: Segment
) -> None:
    faults = Faults(flip_at=BLOCK_BYTES + BLOCK_BYTES // 2)
    async with Proxy(port_of(process), faults, is_recording=False) as proxy:
        digests = await transport.read_digests(through(process, proxy), endless()[:4], timeout_s=30)
    right = [xxhash.xxh3_64_intdigest(content(slot, BLOCK_BYTES).data) for slot in range(4)]
    assert sum(a != b for a, b in zip(digests, right, strict=True)) == 1
    assert digests == [xxhash.xxh3_64_intdigest(mine.block(slot).data) for slot in range(4)]
