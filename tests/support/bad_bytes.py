"""Payloads that are no message, or not the expected one: truncated, huge, of wrong types."""

from typing import Any

import msgpack
from hypothesis import strategies as st

NOTHING = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats()
VALUES: st.SearchStrategy[Any] = st.recursive(
    NOTHING | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def payloads(fields: list[str]) -> st.SearchStrategy[bytes]:
    """For a message with these fields; some of the payloads may be good by chance."""
    names = st.sampled_from(fields) if fields else st.text(max_size=4)
    maps = st.dictionaries(names, VALUES, max_size=len(fields) + 1)
    packed = maps.map(_packed)
    return st.one_of(
        st.binary(max_size=64),
        VALUES.map(_packed),
        packed,
        # Truncated somewhere.
        st.tuples(packed, st.integers(0, 32)).map(lambda both: both[0][: both[1]]),
        # Of another version.
        maps.map(lambda found: _packed({**found, "v": 2})),
        # What claims to be JSON.
        st.binary(max_size=32).map(lambda tail: b"{" + tail),
        st.just(b'{"v": 1, "v": 2}'),
        st.just(b"{" * 5_000),
        st.just(b"\x91" * 5_000),  # lists in lists
        st.just(b"\xdd\xff\xff\xff\xff"),  # a list of 4 thousand million things that are not there
        st.just(b"\xc7\x0c\xff" + b"\xff" * 12),  # a time outside of any calendar
    )


HUGE = b"\xc6" + (4 << 20).to_bytes(4, "big") + bytes(4 << 20)
"""Four megabytes, well formed, and no message."""
