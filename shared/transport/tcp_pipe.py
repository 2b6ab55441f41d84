"""A blocking socket used by one thread: exact receives and sends whose waits are looked at.

Owns the options of sockets. Knows nothing of what is sent.
"""

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

LOOK_S = 0.2
"""A wait for the other side is looked at this often, and only while something must come."""
UNACKED_MS = 3_000
"""A peer whose machine is gone answers nothing: the kernel gives up after so long."""
IDLE_PROBE_S, PROBE_INTERVAL_S, NUM_PROBES = 5, 1, 3
MAX_VIEWS = 512
"""Of one call; the kernel takes 1,024."""
SMALL_BYTES = 64 << 10
PIECE_BYTES = 256 << 10
"""Received in one call: a core's cache holds it, and the sender goes on meanwhile."""


class Progress:
    """When a byte of a peer moved last, on any of its streams."""

    def __init__(self) -> None:
        self.moved_s = time.monotonic()

    def note(self) -> None:
        self.moved_s = time.monotonic()

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self.moved_s


class CannotSendFile(Exception):
    """This kernel sends no bytes from such a file; they have to be copied."""


class Pipe:
    """Raises ConnectionError at the end of the stream, and whatever `on_wait` raises.

    `on_wait` is called when nothing has come for LOOK_S, or only a part.
    """

    def __init__(
        self, sock: socket.socket, progress: Progress, on_wait: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._progress = progress
        self._on_wait = on_wait

    def receive(self, view: memoryview) -> None:
        """Exactly the bytes of `view`."""
        at = 0
        while at < len(view):
            try:
                got = self._sock.recv_into(view[at : at + PIECE_BYTES], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                self._on_wait()
                continue
            if got == 0:
                raise ConnectionResetError("the stream ended")
            self._progress.note()
            at += got
            if got < PIECE_BYTES and at < len(view):
                self._on_wait()

    def receive_bytes(self, num_bytes: int) -> bytearray:
        buffer = bytearray(num_bytes)
        self.receive(memoryview(buffer))
        return buffer

    def receive_views(self, views: Sequence[memoryview]) -> None:
        """Fill all of them in order."""
        self._move(views, lambda part: self._sock.recvmsg_into(part, 0, socket.MSG_WAITALL)[0])

    def send(self, views: Sequence[memoryview | bytes]) -> None:
        self._move([memoryview(view) for view in views], self._sock.sendmsg)

    def send_file(self, descriptor: int, offset: int, num_bytes: int) -> None:
        """Bytes of a file on a tmpfs, which the kernel sends from where they are.

        Raises CannotSendFile before the first byte where the kernel does not do that.
        """
        at = 0
        while at < num_bytes:
            try:
                moved = os.sendfile(self._sock.fileno(), descriptor, offset + at, num_bytes - at)
            except BlockingIOError:
                self._on_wait()
                continue
            except OSError as error:
                if at == 0 and error.errno in (errno.EINVAL, errno.ENOSYS):
                    raise CannotSendFile from None
                raise
            if moved == 0:
                raise ConnectionResetError("the file ended")
            self._progress.note()
            at += moved

    def _move(
        self, views: Sequence[memoryview], call: Callable[[Sequence[memoryview]], int]
    ) -> None:
        waiting = list(views)
        first = 0
        while first < len(waiting):
            try:
                moved = call(waiting[first : first + MAX_VIEWS])
            except BlockingIOError:
                self._on_wait()
                continue
            if moved == 0:
                raise ConnectionResetError("the stream ended")
            self._progress.note()
            while first < len(waiting) and moved >= len(waiting[first]):
                moved -= len(waiting[first])
                first += 1
            if moved:
                waiting[first] = waiting[first][moved:]


def prepare(sock: socket.socket) -> None:
    """Blocking, with waits that return; a vanished machine is noticed; small frames go at once."""
    sock.settimeout(None)
    wait = struct.pack("@ll", 0, int(LOOK_S * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_USER_TIMEOUT, UNACKED_MS),
        (socket.TCP_KEEPIDLE, IDLE_PROBE_S),
        (socket.TCP_KEEPINTVL, PROBE_INTERVAL_S),
        (socket.TCP_KEEPCNT, NUM_PROBES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def shut(sock: socket.socket) -> None:
    """Whoever waits on it returns at once."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # gone already
