"""One stream to a peer, on the side that asks: a thread that greets, then does one piece of work
after the other. Sleeps while there is none, and notices the peer's end also then.
"""

import asyncio
import contextlib
import os
import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import xxhash

from shared.transport.base import PeerLost, Slice, TcpAddress
from shared.transport.segment import Segment
from shared.transport.tcp_pipe import PIECE_BYTES, SMALL_BYTES, Pipe, Progress, prepare, shut
from shared.transport.tcp_wire import (
    CLIENT_HELLO,
    COUNT,
    MAGIC,
    NONCE_BYTES,
    SERVER_ANSWER,
    SERVER_HELLO,
    VERSION,
    WHY,
    Names,
    Operation,
    Status,
    WireError,
    is_proof,
    packed_request,
    parse_server_hello,
    proof,
)

CONNECT_S = 2.0


@dataclass(slots=True, eq=False)
class Work:
    """Slices that one stream moves in one request, and what became of them."""

    operation: Operation
    slices: Sequence[Slice]
    with_digests: bool
    ended: asyncio.Future[None]
    """Set when no thread touches the slots any more, whatever happened."""
    done: int = 0
    digests: list[int] = field(default_factory=list)
    error: Exception | None = None
    stream: "Stream | None" = None
    """The one that does it now or did it."""
    waiting: deque["Work"] = field(default_factory=deque)
    """What the same call has not begun yet."""


class Stream:
    """Made and used on the loop; `start` gives it work, `cut` ends it."""

    def __init__(
        self,
        own: Segment,
        names: Names,
        address: TcpAddress,
        progress: Progress,
        stall_s: float,
        on_free: Callable[["Stream", Work | None], None],
        on_lost: Callable[["Stream", str], None],
    ) -> None:
        self._own = own
        self._names = names
        self._address = address
        self._progress = progress
        self._stall_s = stall_s
        self._on_free = on_free
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self.is_cut = False
        self.has_greeted = False
        self.work: Work | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Set when its thread is gone."""
        self._thread = threading.Thread(target=self._run, name="tcp-stream", daemon=True)
        self._thread.start()

    def start(self, work: Work) -> None:
        self.work = work
        work.stream = self
        os.eventfd_write(self._wake, 1)

    def cut(self) -> None:
        """End it; its work fails, and is settled once `ended` or the work's `ended` is set."""
        with self._lock:
            if self.is_cut:
                return
            self.is_cut = True
            if self._sock is not None:
                shut(self._sock)
            if not self.ended.done():
                os.eventfd_write(self._wake, 1)

    # --- its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        reason = "given up"
        try:
            with self._dial() as sock:
                pipe = Pipe(sock, self._progress, self._look)
                self._greet(pipe)
                self._tell(self._be_ready)
                self._serve(sock, pipe)
        except (OSError, WireError, PeerLost) as error:
            reason = str(error) or type(error).__name__
        finally:
            with self._lock:
                self._sock = None
            self._tell(self._end, reason)

    def _dial(self) -> socket.socket:
        sock = socket.create_connection((self._address.host, self._address.port), CONNECT_S)
        try:
            prepare(sock)
            with self._lock:
                if self.is_cut:
                    raise ConnectionAbortedError("given up while it was being opened")
                self._sock = sock
        except BaseException:
            sock.close()
            raise
        self._progress.note()
        return sock

    def _greet(self, pipe: Pipe) -> None:
        server_nonce = parse_server_hello(bytes(pipe.receive_bytes(SERVER_HELLO.size)))
        raw_names, nonce = self._names.packed(), secrets.token_bytes(NONCE_BYTES)
        capability = self._address.capability
        own = proof(capability, b"client", server_nonce, nonce, raw_names)
        hello = CLIENT_HELLO.pack(MAGIC, VERSION, len(raw_names), nonce, own)
        pipe.send([hello + raw_names])
        status, given = SERVER_ANSWER.unpack(pipe.receive_bytes(SERVER_ANSWER.size))
        if status != Status.WELCOME:
            raise WireError(WHY.get(status, f"it answers {status}"))
        if not is_proof(given, proof(capability, b"server", server_nonce, nonce, raw_names)):
            raise WireError("who listens there does not know the node's capability")

    def _serve(self, sock: socket.socket, pipe: Pipe) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(sock, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self.is_cut:
                return
            if self._wake not in ready:
                raise ConnectionResetError("the peer closed the stream")
            os.eventfd_read(self._wake)
            work = self.work
            if work is None:
                continue
            self._progress.note()
            try:
                self._do(pipe, work)
            except (OSError, WireError, PeerLost) as error:
                work.error = error
                raise
            self.work = None
            self._tell(self._finish, work)

    def _do(self, pipe: Pipe, work: Work) -> None:
        pipe.send([packed_request(work.operation, work.slices)])
        (count,) = COUNT.unpack(pipe.receive_bytes(COUNT.size))
        if count > len(work.slices):
            raise WireError(f"it answers {count} slices, {len(work.slices)} were asked for")
        if work.operation is Operation.WRITE:
            pipe.send([self._view(part) for part in work.slices[:count]])
        else:
            self._receive(pipe, work, work.slices[:count])
        if work.operation is Operation.READ_IN_PLACE:
            pipe.send([COUNT.pack(count)])
        (valid,) = COUNT.unpack(pipe.receive_bytes(COUNT.size))
        work.done = min(valid, count)
        del work.digests[work.done :]

    def _receive(self, pipe: Pipe, work: Work, slices: Sequence[Slice]) -> None:
        small: list[memoryview] = []
        for part in slices:
            view = self._view(part)
            if work.with_digests:
                work.digests.append(_receive_hashed(pipe, view))
            elif part.num_bytes < SMALL_BYTES:
                small.append(view)
            else:
                pipe.receive_views(small)
                small.clear()
                pipe.receive(view)
        pipe.receive_views(small)

    def _view(self, part: Slice) -> memoryview:
        start = part.slot * self._own.info.block_bytes + part.offset
        return self._own.data[start : start + part.num_bytes]

    def _look(self) -> None:
        if self.is_cut:
            raise ConnectionAbortedError("given up")
        if self._progress.idle_s > self._stall_s:
            raise PeerLost(f"not a byte came for {self._stall_s:g} s")

    # --- back on the loop ----------------------------------------------------------------------

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call, *arguments)

    def _be_ready(self) -> None:
        self.has_greeted = True
        self._on_free(self, None)

    def _finish(self, work: Work) -> None:
        _set(work.ended)
        self._on_free(self, work)

    def _end(self, reason: str) -> None:
        os.close(self._wake)
        if self.work is not None:
            self.work.error = self.work.error or PeerLost(reason)
            _set(self.work.ended)
        _set(self.ended)
        self._on_lost(self, reason)


def _receive_hashed(pipe: Pipe, view: memoryview) -> int:
    state = xxhash.xxh3_64()
    for at in range(0, len(view), PIECE_BYTES):
        piece = view[at : at + PIECE_BYTES]
        pipe.receive(piece)
        state.update(piece)
    return int(state.intdigest()) or 1


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
