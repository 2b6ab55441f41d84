"""What a NATS server sends, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.runtime.nats_parser import (
    MAX_INFO_BYTES,
    MAX_LINE_BYTES,
    BadProtocolError,
    NatsParser,
    headers_of,
    status_of,
)

Heard = tuple[int, str, str, bytes, bytes] | bytes
HEADERS = b"NATS/1.0\r\nNats-Service-Error: full\r\nNats-Service-Error-Code:503\r\n\r\n"


def heard_of(parts: list[bytes]) -> list[Heard]:
    heard: list[Heard] = []
    parser = NatsParser(lambda *message: heard.append(message), heard.append)
    for part in parts:
        parser.feed(part)
    return heard


def sent(message: tuple[int, str, str, bytes, bytes]) -> bytes:
    sid, subject, reply, payload, headers = message
    words = f"{subject} {sid} {reply}".strip()
    size = len(headers) + len(payload)
    line = f"HMSG {words} {len(headers)} {size}" if headers else f"MSG {words} {size}"
    return line.encode() + b"\r\n" + headers + payload + b"\r\n"


MESSAGES = st.tuples(
    st.integers(1, 2**40),
    st.from_regex(r"[a-z_$]{1,9}(\.[a-z0-9]{1,9}){0,3}", fullmatch=True),
    st.sampled_from(["", "_INBOX.gateway.aB3.1f"]),
    st.binary(max_size=60) | st.sampled_from([b"\r\n", b"MSG a 1 3\r\n", b"x" * 9_000]),
    st.sampled_from([b"", HEADERS, b"NATS/1.0 503\r\n\r\n"]),
)
LINES = st.sampled_from([b"PING", b"PONG", b"+OK", b"-ERR 'slow'", b'INFO {"version":"2"}'])


@given(st.lists(MESSAGES | LINES, max_size=12), st.data())
def test_the_same_is_heard_however_the_bytes_are_cut(
    said: list[Heard], data: st.DataObject
) -> None:
    stream = b"".join(sent(one) if isinstance(one, tuple) else one + b"\r\n" for one in said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    ends = [*cuts, len(stream)]
    parts = [stream[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    assert heard_of([stream]) == said
    assert heard_of(parts) == said


def test_a_byte_at_a_time_is_enough() -> None:
    stream = sent((7, "a.b", "r", b"hello", HEADERS)) + b"PING\r\n"
    assert heard_of([stream[at : at + 1] for at in range(len(stream))]) == [
        (7, "a.b", "r", b"hello", HEADERS),
        b"PING",
    ]


def test_of_a_large_message_nothing_is_copied_before_it_is_whole() -> None:
    joined = 0

    class Parser(NatsParser):
        def _message(self, data: bytes, at: int, end: int) -> int:
            nonlocal joined
            joined += 1
            return super()._message(data, at, end)

    heard: list[Heard] = []
    stream = sent((1, "a", "", b"x" * 8_000_000, b""))
    parser = Parser(lambda *message: heard.append(message), heard.append)
    for at in range(0, len(stream), 65_536):
        parser.feed(stream[at : at + 65_536])
    assert joined == 2
    assert [len(message[3]) for message in heard if isinstance(message, tuple)] == [8_000_000]


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1\r\n",
        b"MSG a one 3\r\n",
        b"MSG a 1 -3\r\n",
        b"MSG a 1 r x 3\r\n",
        b"HMSG a 1 9 3\r\n",
    ],
)
def test_a_line_that_is_none_is_said(line: bytes) -> None:
    with pytest.raises(BadProtocolError):
        heard_of([line])


@pytest.mark.parametrize(("start", "most"), [(b"M", MAX_LINE_BYTES), (b"I", MAX_INFO_BYTES)])
def test_a_line_without_an_end_is_not_kept_for_ever(start: bytes, most: int) -> None:
    assert heard_of([start * most]) == []
    with pytest.raises(BadProtocolError):
        heard_of([start * most, start])


def test_a_subject_that_is_no_text_ends_nothing() -> None:
    assert heard_of([b"MSG a.\xff 1 2\r\nhi\r\n"]) == [(1, "a.\ufffd", "", b"hi", b"")]


def test_headers_and_status() -> None:
    assert headers_of(HEADERS) == {
        "Nats-Service-Error": "full",
        "Nats-Service-Error-Code": "503",
    }
    assert headers_of("NATS/1.0\r\nno colon\r\nÄ: é\r\n\r\n".encode()) == {"��": "é"}
    assert (status_of(b"NATS/1.0 503\r\n\r\n"), status_of(HEADERS), status_of(b"")) == (
        "503",
        "",
        "",
    )
