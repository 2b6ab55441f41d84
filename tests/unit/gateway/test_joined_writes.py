"""What a connection writes in one turn of the loop leaves together, in order, before its end."""

import asyncio
from typing import Any

from services.gateway.joined_writes import WRITE_BYTES, JoinedWrites


class Wire:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def write(self, data: bytes) -> None:
        self.said.append(data)

    def close(self) -> None:
        self.said.append("close")

    def abort(self) -> None:
        self.said.append("abort")

    def is_closing(self) -> bool:
        return bool(self.said) and self.said[-1] in ("close", "abort")


def joined() -> tuple[Wire, JoinedWrites]:
    wire = Wire()
    return wire, JoinedWrites(wire, asyncio.get_running_loop())  # type: ignore[arg-type]


async def test_head_and_first_event_leave_together_at_once() -> None:
    wire, transport = joined()
    transport.write(b"HTTP/1.1 200 OK ")
    assert wire.said == []
    transport.write(b"event")
    assert wire.said == [b"HTTP/1.1 200 OK event"]
    transport.write(b"next")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.said[1:] == [b"next"]


async def test_a_head_without_anything_leaves_at_the_end_of_its_turn() -> None:
    wire, transport = joined()
    transport.write(b"HTTP/1.1 200 OK ")
    await asyncio.sleep(0)
    assert wire.said == [b"HTTP/1.1 200 OK "]


async def test_events_of_one_turn_leave_together_and_the_next_turn_by_itself() -> None:
    wire, transport = joined()
    for part in (b"one ", b"two ", b"three"):
        transport.write(part)
    assert wire.said == []
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.said == [b"one two three", b"more"]


async def test_much_is_written_at_once() -> None:
    wire, transport = joined()
    transport.write(b"head")
    transport.write(b"x" * WRITE_BYTES)
    assert wire.said == [b"head" + b"x" * WRITE_BYTES]
    transport.write(b"y")
    await asyncio.sleep(0)
    assert wire.said[1:] == [b"y"]


async def test_closing_comes_after_what_was_written_and_aborting_in_place_of_it() -> None:
    wire, transport = joined()
    transport.write(b"last words")
    transport.close()
    assert wire.said == [b"last words", "close"]
    assert transport.is_closing()
    wire, transport = joined()
    transport.write(b"unsaid")
    transport.abort()
    await asyncio.sleep(0)
    assert wire.said == ["abort"]


async def test_a_connection_that_is_lost_meanwhile_is_written_to_no_more() -> None:
    wire, transport = joined()
    transport.write(b"too late")
    wire.said.append("close")
    await asyncio.sleep(0)
    assert wire.said == ["close"]
