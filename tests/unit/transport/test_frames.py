"""Frames come out whole however the stream was cut."""

import random

import pytest

from shared.transport.frames import LENGTH, FrameConnection, FrameError, FrameSplitter


def framed(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


@pytest.mark.parametrize("seed", range(5))
def test_frames_are_found_in_any_cut(seed: int) -> None:
    generator = random.Random(seed)
    frames = [generator.randbytes(generator.choice([0, 1, 3, 200])) for _ in range(50)]
    stream = b"".join(map(framed, frames))
    splitter = FrameSplitter(1000)
    found: list[bytes] = []
    while stream:
        size = generator.choice([1, 2, 5, 150, 1000])
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == frames


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    splitter = FrameSplitter(100)
    assert splitter.feed(framed(b"x" * 100)) == [b"x" * 100]
    with pytest.raises(FrameError, match="frame of 101 bytes"):
        splitter.feed(LENGTH.pack(101))


class FakeSocket:
    def __init__(self) -> None:
        self.sent = b""
        self.waiting_bytes = 0
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def abort(self) -> None:
        self.is_aborted = True


class Ends:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.losses: list[Exception | None] = []
        self.connection = FrameConnection(
            max_bytes=100, on_frame=self.frames.append, on_lost=self.losses.append
        )
        self.socket = FakeSocket()
        self.connection.connection_made(self.socket)  # type: ignore[arg-type]


def test_a_stranger_is_cut_off_and_lost_once() -> None:
    ends = Ends()
    ends.connection.data_received(b"GET / HTTP/1.1\r\n")
    assert ends.socket.is_aborted
    ends.connection.connection_lost(None)
    assert len(ends.losses) == 1
    assert ends.frames == []


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    ends = Ends()
    ends.connection.send(b"hello")
    assert ends.socket.sent == framed(b"hello")
    ends.socket.waiting_bytes = 101
    ends.connection.send(b"hello")
    assert ends.socket.is_aborted
    assert len(ends.losses) == 1
    ends.connection.send(b"nobody listens")
    assert ends.socket.sent == framed(b"hello")


def test_a_frame_too_long_to_send_is_refused_and_the_rest_goes_on() -> None:
    ends = Ends()
    with pytest.raises(FrameError):
        ends.connection.send(b"x" * 101)
    ends.connection.send(b"ok")
    assert ends.socket.sent == framed(b"ok")
