"""Splits what a NATS server sends into messages and control lines. Pure."""

from collections.abc import Callable

MAX_LINE_BYTES = 4096
"""What servers take as a line; they send no longer ones but INFO, which may name many servers."""
MAX_INFO_BYTES = 1 << 20
END = b"\r\n"
_MSG, _HMSG = ord("M"), ord("H")

OnMessage = Callable[[int, str, str, bytes, bytes], None]
"""Called with the subscription's number, subject, reply subject, payload and raw headers."""
OnLine = Callable[[bytes], None]
"""Called with every other line: INFO, PING, PONG, +OK, -ERR."""


class BadProtocolError(ValueError):
    """What came is not what a NATS server says."""


class NatsParser:
    """Owns the part of a message that has come so far; the bytes of a large one are joined once."""

    def __init__(self, on_message: OnMessage, on_line: OnLine) -> None:
        self._on_message = on_message
        self._on_line = on_line
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._needed_bytes = 0
        """As many must be there before it is worth looking again."""

    def feed(self, data: bytes) -> None:
        """Hand on what is whole now; raises BadProtocolError."""
        if self._parts:
            self._parts.append(data)
            self._num_bytes += len(data)
            if self._num_bytes < self._needed_bytes:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, size = 0, len(data)
        while at < size:
            end = data.find(END, at)
            if end < 0:
                if size - at > (MAX_INFO_BYTES if data[at] == ord("I") else MAX_LINE_BYTES):
                    raise BadProtocolError("a line without an end")
                self._keep(data[at:], 0)
                return
            kind = data[at]
            if kind in (_MSG, _HMSG):
                after = self._message(data, at, end)
                if after > size:
                    self._keep(data[at:], after - at)
                    return
                at = after
            else:
                at, line = end + 2, data[at:end]
                self._on_line(line)

    def _message(self, data: bytes, at: int, end: int) -> int:
        """Where the message ends whose line is from `at` to `end`; handed on if that is there."""
        words = data[at:end].split()
        try:
            headers_size = int(words.pop(-2)) if words[0] == b"HMSG" else 0
            num_bytes = int(words[-1])
            sid = int(words[2])
            if len(words) not in (4, 5) or not 0 <= headers_size <= num_bytes:
                raise ValueError
        except (ValueError, IndexError):
            raise BadProtocolError(f"bad line {data[at:end][:80]!r}") from None
        start = end + 2
        stop = start + num_bytes
        if stop + 2 <= len(data):
            body = start + headers_size
            # A subject may be any bytes; nobody here sends others than text.
            subject = words[1].decode("utf-8", "replace")
            reply = words[3].decode("utf-8", "replace") if len(words) == 5 else ""
            self._on_message(sid, subject, reply, data[body:stop], data[start:body])
        return stop + 2

    def _keep(self, rest: bytes, needed_bytes: int) -> None:
        self._parts.append(rest)
        self._num_bytes = len(rest)
        self._needed_bytes = needed_bytes


def headers_of(raw: bytes) -> dict[str, str]:
    """The headers of a message; lines that are none are left out."""
    headers: dict[str, str] = {}
    for line in raw.split(END)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.strip().decode("ascii", "replace")] = value.strip().decode(
                "utf-8", "replace"
            )
    return headers


def status_of(raw: bytes) -> str:
    """The status that the server itself gave instead of an answer; empty when there is none."""
    first = raw[: raw.find(END)].split()
    return first[1].decode("ascii", "replace") if len(first) > 1 else ""
