"""Who shares cached KV with whom: the namespace of a request. Pure."""

import hashlib
import json

NAMESPACE_BYTES = 16


def namespace_of(tenant: str, salt: str | None) -> bytes:
    """Empty where nothing is kept apart; `tenant` is empty where tenants share."""
    if not tenant and salt is None:
        return b""
    named = json.dumps([tenant, salt], ensure_ascii=True).encode("ascii")
    return hashlib.blake2b(named, digest_size=NAMESPACE_BYTES).digest()
