"""The ACL file of Redis or Valkey: what cache-index needs and no more. Writes no file."""

import hashlib
from collections.abc import Mapping

from shared.messages.access import ADMIN

INDEX_USER = "cache-index"
# Reads, writes and scripts on moonpool's own keys; no configuration, no flush, no other keys.
_INDEX_RIGHTS = (
    "~mp:* ~mn:* resetchannels -@all +@read +@write +@scripting +@connection +@transaction"
)
_INDEX_REFUSED = "-@dangerous -@admin -flushdb -flushall"
# What memory is used, and where the slots of a cluster are.
_INDEX_LOOKS = "+info +dbsize +cluster|slots +cluster|shards +cluster|nodes +cluster|myid +command"


def users(passwords: Mapping[str, str]) -> str:
    return "".join(
        (
            "user default off\n",
            f"user {INDEX_USER} on {_hashed(passwords[INDEX_USER])} {_INDEX_RIGHTS} "
            f"{_INDEX_REFUSED} {_INDEX_LOOKS}\n",
            f"user {ADMIN} on {_hashed(passwords[ADMIN])} ~* &* +@all\n",
        )
    )


def _hashed(password: str) -> str:
    return "#" + hashlib.sha256(password.encode()).hexdigest()
