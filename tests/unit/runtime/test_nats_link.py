"""A connection that ends before it is taken over from the stream that greeted the server."""

import asyncio
import socket
import struct

from shared.runtime.nats_link import NatsLink
from tests.support.deadline import until

RESET = struct.pack("ii", 1, 0)


async def taken_over(sent: bytes, *, is_reset: bool) -> tuple[NatsLink, list[bytes]]:
    """A link whose server sent this and was gone before; and the lines that were heard."""
    here, there = socket.socketpair() if not is_reset else tcp_pair()
    reader, writer = await asyncio.open_connection(sock=here)
    there.sendall(sent)
    if is_reset:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    there.close()
    await until(lambda: reader._eof or reader.exception() is not None, what="it ended")
    lines: list[bytes] = []
    link = NatsLink(writer, lambda *_: None, lines.append)
    async with asyncio.timeout(20):
        await link.begin(reader)
        assert await link.next_work() is None
    assert not link.is_open
    writer.close()
    return link, lines


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    return here, there


async def test_what_came_before_the_end_is_heard_and_the_end_noticed() -> None:
    link, lines = await taken_over(b"PING\r\n-ERR 'bye'\r\n", is_reset=False)
    assert lines == [b"PING", b"-ERR 'bye'"]
    assert link.error is None


async def test_a_reset_is_noticed_and_told() -> None:
    link, _ = await taken_over(b"", is_reset=True)
    assert isinstance(link.error, ConnectionResetError)
