"""The keys of a chain of full blocks: equal on every process, host and run. Sees no KV bytes.

A chain travels as one packed bytes value, 16 bytes a key, root's first child first.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from shared.kv.ids import KEY_BYTES, BlockKey

TOKEN_BYTES = 4


def chain_keys(root: bytes, tokens: bytes | npt.NDArray[np.int32], block_tokens: int) -> bytes:
    """Packed keys of the full blocks of `tokens` (packed int32 little endian, or an array).

    key[i] = blake2b-128(key[i-1] ‖ tokens of block i), key[-1] = root. A last block that is not
    full has no key.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens: must be at least 1, is {block_tokens}")
    packed = tokens if isinstance(tokens, bytes) else _packed(tokens)
    if len(packed) % TOKEN_BYTES:
        raise ValueError(f"tokens: {len(packed)} bytes are no whole int32 values")
    block_bytes = block_tokens * TOKEN_BYTES
    key = root
    keys: list[bytes] = []
    view = memoryview(packed)
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        digest = hashlib.blake2b(key, digest_size=KEY_BYTES)
        digest.update(view[start : start + block_bytes])
        key = digest.digest()
        keys.append(key)
    return b"".join(keys)


def seed_of(root: bytes, namespace: bytes) -> bytes:
    """What the first key of a chain is made from: the root alone where nothing is kept apart."""
    if not namespace:
        return root
    return hashlib.blake2b(root, digest_size=KEY_BYTES, key=namespace).digest()


def num_keys(chain: bytes) -> int:
    """Keys in a packed chain; raises ValueError when it is cut within a key."""
    count, rest = divmod(len(chain), KEY_BYTES)
    if rest:
        raise ValueError(f"chain: {len(chain)} bytes are no whole keys of {KEY_BYTES}")
    return count


def key_at(chain: bytes, index: int) -> BlockKey:
    if not 0 <= index < num_keys(chain):
        raise IndexError(f"chain: no key {index} among {num_keys(chain)}")
    return BlockKey(chain[index * KEY_BYTES : (index + 1) * KEY_BYTES])


def take(chain: bytes, count: int) -> bytes:
    """The first `count` keys, or all when there are fewer."""
    return chain[: max(count, 0) * KEY_BYTES]


def split(chain: bytes) -> list[BlockKey]:
    """The keys of a packed chain as a list."""
    num_keys(chain)
    return [BlockKey(chain[at : at + KEY_BYTES]) for at in range(0, len(chain), KEY_BYTES)]


def num_common(one: bytes, other: bytes) -> int:
    """Leading keys that two packed chains share. Keys are chained: alike once, alike before."""
    low, high = 0, min(len(one), len(other)) // KEY_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at = slice((middle - 1) * KEY_BYTES, middle * KEY_BYTES)
        if one[at] == other[at]:
            low = middle
        else:
            high = middle - 1
    return low


def _packed(tokens: npt.NDArray[np.int32]) -> bytes:
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens: must be whole numbers in one dimension, is {tokens.dtype}")
    if tokens.dtype.itemsize > TOKEN_BYTES or tokens.dtype.kind == "u":
        limits = np.iinfo(np.int32)
        if tokens.size and (int(tokens.min()) < limits.min or int(tokens.max()) > limits.max):
            raise ValueError("tokens: a value does not fit in int32")
    return tokens.astype("<i4", copy=False).tobytes()
