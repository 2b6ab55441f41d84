"""The ACL file of Redis or Valkey: what cache-index needs and no more. Writes no file."""

import hashlib
from collections.abc import Mapping

from shared.messages.access import ADMIN

INDEX_USER = "cache-index"
# Reads, writes and scripts on moonpool's own keys; no configuration, no flush, no other keys.
# `mn:` is where a segment of several hashes says how many (services/cache_index/segments.py).
_INDEX_KEYS = "~mp:* ~mn:* resetchannels"
_INDEX_RIGHTS = "-@all +@read +@write +@scripting +@connection +@transaction"
_INDEX_REFUSED = "-@dangerous -@admin -flushdb -flushall"
# What memory is used, and where the slots of a cluster are.
_INDEX_LOOKS = "+info +dbsize +cluster|slots +cluster|shards +cluster|nodes +cluster|myid +command"


def users(passwords: Mapping[str, str]) -> str:
    return "".join(
        (
            "user default off\n",
            f"user {INDEX_USER} on {_hashed(passwords[INDEX_USER])} {_INDEX_KEYS} "
            f"{_INDEX_RIGHTS} {_INDEX_REFUSED} {_INDEX_LOOKS}\n",
            f"user {ADMIN} on {_hashed(passwords[ADMIN])} ~* &* +@all\n",
        )
    )


def _hashed(password: str) -> str:
    return "#" + hashlib.sha256(password.encode()).hexdigest()
