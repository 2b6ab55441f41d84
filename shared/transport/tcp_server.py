"""Answers other nodes' streams: bytes of own slots, and writes where the pool allows them.

One thread a stream, so that a peer that is slow or stopped holds up nobody else; as many streams as
there may be are counted. Reads and writes slots, owns none.
"""

import asyncio
import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np

from shared.transport.segment import Segment
from shared.transport.tcp_pipe import CannotSendFile, Pipe, Progress, prepare, shut
from shared.transport.tcp_wire import (
    CLIENT_HELLO,
    COUNT,
    MAGIC,
    MAX_NAMES_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REQUEST,
    SERVER_ANSWER,
    SERVER_HELLO,
    VERSION,
    WIRE_SLICE,
    Names,
    Operation,
    Status,
    WireError,
    WireSlices,
    is_proof,
    leading_that_hold,
    parse_request,
    parse_slices,
    proof,
)

log = logging.getLogger("moonpool.transport.tcp")
MAX_STREAMS = 256
MAX_STREAMS_OF_PEER = 16
MAX_GREETING = 32
GREETING_S = 2.0
STOPPED_PEER_S = 5.0
"""A peer that asked and then takes nothing for so long is cut off."""
ASK_POOL_S = 2.0
CLOSING_S = 2.0

MayWrite = Callable[[Names, int, int], bool]
"""Whether that peer may write (slot, generation) now; called on the loop."""


def refuse_writes(_peer: Names, _slot: int, _generation: int) -> bool:
    return False


class TcpServer:
    """Listens from `start` to `close`; its loop is the one that called `start`."""

    def __init__(
        self,
        segment: Segment,
        node: str,
        incarnation: str,
        capability: bytes,
        *,
        may_write: MayWrite = refuse_writes,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self._segment = segment
        self._node = node
        self._incarnation = incarnation
        self._capability = capability
        self._may_write = may_write
        self._max_streams = max_streams
        self._loop: asyncio.AbstractEventLoop
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._serving: dict[_Served, threading.Thread] = {}
        self._is_closed = False
        own = segment.descriptor
        self.file = None if own is None else os.dup(own)
        """The segment's, from which bytes leave; open as long as a stream may send."""
        self.bytes_sent_total = 0

    def start(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        threading.Thread(
            target=self._accept, args=(listener,), name="tcp-accept", daemon=True
        ).start()

    def cut_all(self) -> None:
        """No new streams, and those that are there end now."""
        self._is_closed = True
        if self._listener is not None:
            shut(self._listener)
            self._listener.close()
            self._listener = None
        with self._lock:
            for served in self._serving:
                shut(served.sock)

    async def cut(self, node: str, incarnation: str) -> None:
        """End that peer's streams; when it returns no write that was allowed before can land."""
        with self._lock:
            ended = [
                (served, thread)
                for served, thread in self._serving.items()
                if served.peer is not None
                and (served.peer.node, served.peer.incarnation) == (node, incarnation)
            ]
        for served, _ in ended:
            shut(served.sock)
        for _, thread in ended:
            await asyncio.to_thread(thread.join)

    async def close(self) -> None:
        self.cut_all()
        with self._lock:
            threads = list(self._serving.values())
        for thread in threads:
            await asyncio.to_thread(thread.join, CLOSING_S)
        # One that still sends keeps the file: its number must not become another's.
        if self.file is not None and not any(thread.is_alive() for thread in threads):
            os.close(self.file)
            self.file = None

    # --- threads -------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_closed:
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                log.warning("a stream could not be taken: %s", error)
                time.sleep(0.1)  # out of descriptors, most likely
                continue
            served = _Served(self, sock)
            thread = threading.Thread(target=self._serve, args=(served,), name="tcp", daemon=True)
            with self._lock:
                greeting = sum(each.peer is None for each in self._serving)
                if (
                    self._is_closed
                    or greeting >= MAX_GREETING
                    or len(self._serving) >= 2 * self._max_streams
                ):
                    sock.close()
                    continue
                self._serving[served] = thread
            try:
                thread.start()
            except RuntimeError as error:  # as many threads as there may be
                log.warning("a stream could not be served: %s", error)
                with self._lock:
                    self._serving.pop(served, None)
                sock.close()

    def _serve(self, served: "_Served") -> None:
        try:
            prepare(served.sock)
            served.run()
        except WireError as error:
            log.warning("a stream is closed: %s", error)
        except OSError as error:
            log.debug("a stream ended: %s", error)
        finally:
            # Out of the table first, so that nobody shuts a descriptor that is another's by then.
            with self._lock:
                self._serving.pop(served, None)
            served.sock.close()

    def admit(self, served: "_Served", names: Names) -> Status:
        if (names.peer_node, names.peer_incarnation) != (self._node, self._incarnation):
            return Status.OTHER_INCARNATION
        with self._lock:
            peers = [each.peer for each in self._serving if each.peer is not None]
            own = sum(
                (peer.node, peer.incarnation) == (names.node, names.incarnation) for peer in peers
            )
            if len(peers) >= self._max_streams or own >= MAX_STREAMS_OF_PEER:
                return Status.FULL
            served.peer = names
        return Status.WELCOME

    @property
    def segment(self) -> Segment:
        return self._segment

    @property
    def capability(self) -> bytes:
        return self._capability

    def num_writable(self, peer: Names, slices: WireSlices) -> int:
        """How many leading slices the pool lets this peer write now; asks it on its loop."""
        holding = slices[: leading_that_hold(slices, self._segment.generations)]
        wanted = [(int(part["slot"]), int(part["generation"])) for part in holding]
        answer: Future[int] = Future()

        def ask() -> None:
            count = 0
            for slot, generation in wanted:
                if not self._may_write(peer, slot, generation):
                    break
                count += 1
            answer.set_result(count)

        try:
            self._loop.call_soon_threadsafe(ask)
            return answer.result(ASK_POOL_S)
        except (RuntimeError, FutureTimeoutError):
            return 0

    def count_sent(self, num_bytes: int) -> None:
        with self._lock:
            self.bytes_sent_total += num_bytes


class _Served:
    """One stream of a peer, on the server's side; `run` is its thread."""

    def __init__(self, server: TcpServer, sock: socket.socket) -> None:
        self.sock = sock
        self.peer: Names | None = None
        self._server = server
        self._progress = Progress()
        self._since_s = time.monotonic()
        self._pipe = Pipe(sock, self._progress, self._look)
        self._file = server.file

    def run(self) -> None:
        """Until the stream ends; WireError and OSError say why."""
        if not self._greet():
            return
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while True:
            poll.poll()  # idle streams sleep
            self._progress.note()
            operation, count = parse_request(self._pipe.receive_bytes(REQUEST.size))
            info = self._server.segment.info
            slices = parse_slices(
                self._pipe.receive_bytes(count * WIRE_SLICE.itemsize),
                num_slots=info.num_slots,
                block_bytes=info.block_bytes,
            )
            if operation is Operation.READ:
                self._send(slices)
            elif operation is Operation.READ_IN_PLACE:
                self._send_in_place(slices)
            else:
                self._receive(slices)

    def _look(self) -> None:
        if self.peer is None:
            # In all, however slowly bytes come: who is not known may not keep a place for long.
            if time.monotonic() - self._since_s > GREETING_S:
                raise TimeoutError(f"nobody was greeted within {GREETING_S:g} s")
        elif self._progress.idle_s > STOPPED_PEER_S:
            raise TimeoutError(f"the peer was silent for {STOPPED_PEER_S:g} s")

    def _greet(self) -> bool:
        """Whether the peer proved that it was let in; it is told when not."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._pipe.send([SERVER_HELLO.pack(MAGIC, VERSION, nonce)])
        hello = self._pipe.receive_bytes(CLIENT_HELLO.size)
        magic, version, length, client_nonce, given = CLIENT_HELLO.unpack(hello)
        if magic != MAGIC or version != VERSION or length > MAX_NAMES_BYTES:
            raise WireError("somebody who is no moonpool node of this version called")
        raw_names = bytes(self._pipe.receive_bytes(length))
        names = Names.unpacked(raw_names)
        capability = self._server.capability
        expected = proof(capability, b"client", nonce, client_nonce, raw_names)
        is_known = is_proof(given, expected)
        status = self._server.admit(self, names) if is_known else Status.NO_PROOF
        own = bytes(PROOF_BYTES)
        if is_known:
            own = proof(capability, b"server", nonce, client_nonce, raw_names)
        self._pipe.send([SERVER_ANSWER.pack(status, own)])
        if status is not Status.WELCOME:
            log.warning("node %s is not let in: %s", names.node, status.name.lower())
        return status is Status.WELCOME

    def _send(self, slices: WireSlices) -> None:
        segment = self._server.segment
        count = leading_that_hold(slices, segment.generations)
        views = _views(segment, slices[:count])
        self._pipe.send([COUNT.pack(count), *views])
        # All of it is with the kernel by now: what changes later is not sent.
        self._pipe.send([COUNT.pack(leading_that_hold(slices[:count], segment.generations))])
        self._server.count_sent(sum(len(view) for view in views))

    def _send_in_place(self, slices: WireSlices) -> None:
        segment = self._server.segment
        count = leading_that_hold(slices, segment.generations)
        self._pipe.send([COUNT.pack(count)])
        starts, ends = _bounds(segment, slices[:count])
        for start, end in zip(starts, ends, strict=True):
            self._send_part(segment, start, end)
        # Until the peer has them, a change of a slot may change the bytes.
        (received,) = COUNT.unpack(self._pipe.receive_bytes(COUNT.size))
        if received != count:
            raise WireError(f"it has {received} slices, {count} were sent")
        self._pipe.send([COUNT.pack(leading_that_hold(slices[:count], segment.generations))])
        self._server.count_sent(sum(ends) - sum(starts))

    def _send_part(self, segment: Segment, start: int, end: int) -> None:
        if self._file is not None:
            try:
                self._pipe.send_file(self._file, segment.info.data_offset + start, end - start)
            except CannotSendFile:
                self._file = None
            else:
                return
        self._pipe.send([segment.data[start:end]])

    def _receive(self, slices: WireSlices) -> None:
        assert self.peer is not None
        segment = self._server.segment
        count = self._server.num_writable(self.peer, slices)
        self._pipe.send([COUNT.pack(count)])
        for number, view in enumerate(_views(segment, slices[:count])):
            if not self._server.num_writable(self.peer, slices[number : number + 1]):
                raise WireError("a slot may not be written any more")
            self._pipe.receive(view)
        self._pipe.send([COUNT.pack(self._server.num_writable(self.peer, slices[:count]))])


def _bounds(segment: Segment, slices: WireSlices) -> tuple[list[int], list[int]]:
    """Where each slice starts and ends, from the first slot on."""
    block_bytes = segment.info.block_bytes
    starts = slices["slot"].astype(np.int64) * block_bytes + slices["offset"].astype(np.int64)
    ends = starts + slices["num_bytes"].astype(np.int64)
    return starts.tolist(), ends.tolist()


def _views(segment: Segment, slices: WireSlices) -> list[memoryview]:
    bounds = zip(*_bounds(segment, slices), strict=True)
    return [segment.data[start:end] for start, end in bounds]
