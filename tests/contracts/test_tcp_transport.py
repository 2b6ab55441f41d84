"""Two segments in one process and streams between them: TcpTransport against the contract."""

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.transport import tcp_server
from shared.transport.base import Peer, PeerLost, Slice, TcpAddress, WriteRefused
from shared.transport.listening import ListenError
from shared.transport.segment import Segment
from shared.transport.tcp import TcpTransport
from shared.transport.tcp_pipe import Pipe
from shared.transport.tcp_stream import Stream, Work
from shared.transport.tcp_wire import COUNT, MAGIC, SERVER_ANSWER, SERVER_HELLO, VERSION
from tests.contracts.tcp_bench import TcpBench
from tests.contracts.transport_contract import (
    BLOCK_BYTES,
    NUM_SLOTS,
    TransportContract,
    fill,
    many,
    whole,
)
from tests.support.deadline import until
from tests.support.tcp_proxy import Proxy


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TcpBench]:
    bench = await TcpBench.make(tmp_path)
    yield bench
    await bench.close()


class TestTcpTransport(TransportContract):
    pass


async def test_a_write_lands_in_slots_that_the_peer_gave_and_nowhere_else(bench: TcpBench) -> None:
    mine = {slot: np.random.default_rng(slot).integers(0, 256, BLOCK_BYTES) for slot in range(4)}
    for slot, data in mine.items():
        bench.own(slot)[:] = data
    for slot in (8, 9, 11):
        bench.grant(slot)
    slices = [whole(bench, slot + 8, slot) for slot in range(4)]
    assert await bench.transport.write(bench.peer, slices, timeout_s=5) == 2
    for slot in (0, 1):
        assert np.array_equal(bench.theirs(slot + 8), mine[slot])
    assert not bench.theirs(10).any()
    assert not bench.theirs(11).any()


async def test_a_write_to_another_use_of_a_slot_is_refused(bench: TcpBench) -> None:
    bench.grant(8)
    part = whole(bench, 8, 0)
    bench.reuse(8)
    with pytest.raises(WriteRefused):
        await bench.transport.write(bench.peer, [part], timeout_s=5)


async def test_after_a_cut_no_write_lands(bench: TcpBench) -> None:
    for slot in range(NUM_SLOTS):
        bench.grant(slot)
        bench.own(slot)[:] = 3
    writing = asyncio.ensure_future(bench.transport.write(bench.peer, many(bench), timeout_s=30))
    await until(lambda: bench.theirs(0).any())
    bench.granted.clear()  # a stream that opens meanwhile asks for what it may write
    await bench.server.server.cut("me", "1")
    for slot in range(NUM_SLOTS):
        bench.theirs(slot)[:] = 0x5A
    with pytest.raises(PeerLost):
        await writing
    for slot in range(NUM_SLOTS):
        assert (bench.theirs(slot) == 0x5A).all()


async def test_a_slot_that_changes_on_the_way_is_not_taken_for_the_one_asked_for(
    bench: TcpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it left the peer before the change, and nothing of it was received yet."""
    receive = Stream._receive

    def late(stream: Stream, pipe: Pipe, work: Work, slices: list[Slice]) -> None:
        time.sleep(0.1)
        bench.theirs(3)[:] = 0x77
        bench.reuse(3)
        receive(stream, pipe, work, slices)

    monkeypatch.setattr(Stream, "_receive", late)
    slices = [whole(bench, slot, slot) for slot in (2, 3, 4)]
    assert len(await bench.transport.read_digests(bench.peer, slices, timeout_s=5)) == 1


@pytest.mark.parametrize("at", [0, 1])
async def test_where_the_kernel_sends_no_file_the_bytes_are_copied(
    bench: TcpBench, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    calls: list[int] = []
    sendfile = os.sendfile

    def refuse(out: int, source: int, offset: int, count: int) -> int:
        calls.append(offset)
        if len(calls) > at:
            raise OSError(errno.EINVAL, "Invalid argument")
        return sendfile(out, source, offset, count // 2)

    monkeypatch.setattr(os, "sendfile", refuse)
    data = [fill(bench, slot) for slot in range(3)]
    slices = [whole(bench, slot, slot + 4) for slot in range(3)]
    if at == 1:  # what has begun to leave cannot begin anew
        with pytest.raises(PeerLost):
            await bench.transport.read(bench.peer, slices, timeout_s=5)
        return
    assert await bench.transport.read(bench.peer, slices, timeout_s=5) == 3
    for slot in range(3):
        assert np.array_equal(bench.own(slot + 4), data[slot])
    assert len(calls) == 1, "it is not tried again on this stream"


async def test_a_peer_that_has_other_counts_than_were_sent_is_cut(
    bench: TcpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Stream._receive

    def confused(stream: Stream, pipe: Pipe, work: Work, slices: list[Slice]) -> None:
        receive(stream, pipe, work, slices)
        pipe.send([COUNT.pack(7)])

    monkeypatch.setattr(Stream, "_receive", confused)
    with pytest.raises(PeerLost):
        await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=5)


async def test_an_idle_peer_that_ends_is_told_once(bench: TcpBench) -> None:
    told: list[str] = []
    bench.transport.on_peer_lost = lambda peer, _: told.append(peer.node)
    await bench.transport.read(bench.peer, [whole(bench, 0, 0)] * 8, timeout_s=5)
    bench.kill_peer()
    await until(lambda: bool(told))
    with pytest.raises(PeerLost):
        await bench.transport.read(bench.peer, [whole(bench, 0, 0)], timeout_s=5)
    assert told == ["n"]


async def test_another_capability_does_not_let_in(bench: TcpBench) -> None:
    address = bench.peer.tcp
    assert address is not None
    wrong = Peer("n", "1", tcp=replace(address, capability=bytes(32)))
    with pytest.raises(PeerLost, match="refuses our capability"):
        await bench.transport.connect(wrong)


async def test_a_server_that_knows_no_capability_is_not_believed(bench: TcpBench) -> None:
    def impostor(sock: socket.socket) -> None:
        client, _ = sock.accept()
        with client:
            client.sendall(SERVER_HELLO.pack(MAGIC, VERSION, bytes(32)))
            client.recv(1024)
            client.sendall(SERVER_ANSWER.pack(0, bytes(32)))
            client.recv(1024)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor, args=(listener,))
        thread.start()
        address = TcpAddress("127.0.0.1", listener.getsockname()[1], bytes(32))
        with pytest.raises(PeerLost, match="does not know the node's capability"):
            await bench.transport.connect(Peer("n", "1", tcp=address))
        await asyncio.to_thread(thread.join)


async def test_the_capability_is_never_on_the_stream(bench: TcpBench) -> None:
    address = bench.peer.tcp
    assert address is not None
    async with Proxy(address.port) as proxy:
        near = Peer("n", "1", tcp=replace(address, port=proxy.port))
        await bench.transport.read(near, [whole(bench, 0, 0)], timeout_s=5)
    assert len(proxy.seen) > BLOCK_BYTES
    assert address.capability not in proxy.seen


async def test_another_incarnation_is_told_so(bench: TcpBench) -> None:
    with pytest.raises(PeerLost, match="another incarnation"):
        await bench.transport.connect(Peer("n", "2", tcp=bench.peer.tcp))


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n" * 9, b"MPKV\1\0\xff\xff" + bytes(64), b""]
)
async def test_junk_on_the_port_harms_nobody(bench: TcpBench, junk: bytes) -> None:
    data = fill(bench, 1)
    address = bench.peer.tcp
    assert address is not None
    with socket.create_connection(("127.0.0.1", address.port)) as sock:
        sock.sendall(junk)
        assert await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=5) == 1
    assert np.array_equal(bench.own(1), data)


async def test_a_stream_for_which_there_is_no_thread_costs_that_stream_alone(
    bench: TcpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = bench.peer.tcp
    assert address is not None

    class NoThread(threading.Thread):
        def start(self) -> None:
            if self.name == "tcp":
                raise RuntimeError("can't start new thread")
            super().start()

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", NoThread)
        with socket.create_connection(("127.0.0.1", address.port)) as refused:
            refused.settimeout(5)
            assert await asyncio.to_thread(refused.recv, 1) == b""
    assert await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=5) == 1


async def test_who_greets_byte_by_byte_is_cut_in_the_same_time(
    bench: TcpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "GREETING_S", 0.5)
    address = bench.peer.tcp
    assert address is not None

    def drip() -> float:
        started_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", address.port)) as slow:
            while time.monotonic() < started_s + 5:
                try:
                    slow.send(b"M")
                except OSError:
                    break
                time.sleep(0.1)
        return time.monotonic() - started_s

    assert await asyncio.to_thread(drip) < 3


async def test_those_who_never_greet_are_cut_and_lock_nobody_out(bench: TcpBench) -> None:
    address = bench.peer.tcp
    assert address is not None
    silent = [socket.create_connection(("127.0.0.1", address.port)) for _ in range(40)]
    try:
        await asyncio.to_thread(silent[0].recv, 1024)  # the server's nonce
        assert await asyncio.to_thread(silent[0].recv, 1024) == b""
        assert await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=5) == 1
    finally:
        for sock in silent:
            sock.close()


async def test_a_reader_that_stops_does_not_hold_up_others(bench: TcpBench, tmp_path: Path) -> None:
    stopped = TcpTransport(bench.mine, "stopped", "1")
    reading = asyncio.ensure_future(stopped.read(bench.peer, many(bench), timeout_s=30))
    await asyncio.sleep(0.02)
    data = fill(bench, 1)
    for _ in range(10):
        assert await bench.transport.read(bench.peer, [whole(bench, 1, 1)], timeout_s=2) == 1
    assert np.array_equal(bench.own(1), data)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stopped.close()


async def test_many_peers_read_one_node_and_the_oldest_idle_ones_are_given_up(
    tmp_path: Path,
) -> None:
    mine = Segment.create(tmp_path / "me.1.seg", num_slots=40, block_bytes=4096)
    transport = TcpTransport(mine, "me", "1", num_streams=1, max_peers=8)
    peers: list[tuple[TcpTransport, Segment, Peer]] = []
    for number in range(20):
        name = f"n{number}"
        segment = Segment.create(tmp_path / f"{name}.1.seg", num_slots=1, block_bytes=4096)
        segment.block(0)[:] = number + 1
        server = TcpTransport(segment, name, "1")
        peer = Peer(name, "1", tcp=await server.listen("127.0.0.1", range(1)))
        peers.append((server, segment, peer))
    try:
        for _ in range(2):
            done = await asyncio.gather(
                *(
                    transport.read(peer, [Slice(0, 0, slot, 0, 4096)], timeout_s=5)
                    for slot, (_, _, peer) in enumerate(peers)
                )
            )
            assert done == [1] * 20
        for slot in range(20):
            assert (mine.block(slot) == slot + 1).all()
        await until(lambda: transport.num_streams <= 8)
    finally:
        await transport.close()
        for server, segment, _ in peers:
            await server.close()
            segment.close()
        mine.close()


async def test_it_works_over_ipv6(tmp_path: Path) -> None:
    try:
        bench = await TcpBench.make(tmp_path, "::1")
    except ListenError:
        pytest.skip("no IPv6 here")
    data = fill(bench, 1)
    assert await bench.transport.read(bench.peer, [whole(bench, 1, 2)], timeout_s=5) == 1
    assert np.array_equal(bench.own(2), data)
    await bench.close()
