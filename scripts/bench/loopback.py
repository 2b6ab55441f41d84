"""The limit of one TCP stream on this host: bytes that plain calls send and receive."""

import socket
import struct
import threading
from collections.abc import Sequence

COUNT = struct.Struct("<I")


def serve(blocks: Sequence[memoryview]) -> int:
    """Send these blocks, from the first, as many as each connection asks for. Returns the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, blocks), daemon=True).start()
    return int(listener.getsockname()[1])


def receive(sock: socket.socket, blocks: Sequence[memoryview]) -> None:
    """Fill these blocks."""
    sock.sendall(COUNT.pack(len(blocks)))
    for block in blocks:
        at = 0
        while at < len(block):
            got = sock.recv_into(block[at:], 0, socket.MSG_WAITALL)
            if got == 0:
                raise ConnectionResetError("the stream ended")
            at += got


def _accept(listener: socket.socket, blocks: Sequence[memoryview]) -> None:
    sock, _ = listener.accept()
    with listener, sock:
        while asked := sock.recv(COUNT.size, socket.MSG_WAITALL):
            for block in blocks[: COUNT.unpack(asked)[0]]:
                sock.sendall(block)
