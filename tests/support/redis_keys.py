"""Which keys of Redis are no part of the index: what requests must not leave."""

import redis

# One of each, whatever happens; some are made when they are needed first.
BOOKS = {f"mp:{{nodes}}:{name}".encode() for name in ("collected", "horizon", "voided")}


def lasting_keys(url: str) -> list[bytes]:
    """Without the segments of the index, which are compared to the pools, and without leases, which
    come, are renewed and end by time."""
    with redis.Redis.from_url(url) as client:
        keys = [key for key in client.scan_iter(count=1_000) if client.pttl(key) < 0]
    of_segments = (b"mp:{", b"mn:{")
    others = [
        key for key in keys if key.startswith(b"mp:{nodes}") or not key.startswith(of_segments)
    ]
    return sorted(key for key in others if key not in BOOKS)
