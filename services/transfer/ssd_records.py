"""The index of the SSD tier: one record a slot that says which block is in it. Bytes, no files.

A record carries its own checksum and that of its block. One that was torn, or whose block was, is
no block: nothing here depends on the order in which writes reach the disk.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from shared.kv.block_tree import BlockPlace
from shared.kv.ids import KEY_BYTES, BlockKey

MAGIC = 0x4D504B56
RECORD = np.dtype(
    [
        ("check", "<u8"),
        ("magic", "<u4"),
        ("index", "<u4"),
        ("checksum", "<u8"),
        ("key", "u1", KEY_BYTES),
        ("parent", "u1", KEY_BYTES),
        ("head", "u1", KEY_BYTES),
        ("unused", "u1", 56),
    ]
)
RECORD_BYTES = RECORD.itemsize
CHECK_BYTES = 8
EMPTY = bytes(RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that a record speaks of."""

    slot: int
    checksum: int
    place: BlockPlace


def pack(place: BlockPlace, checksum: int) -> bytes:
    record = np.zeros(1, dtype=RECORD)
    record["magic"] = MAGIC
    record["index"] = place.index
    record["checksum"] = checksum
    for name, key in (("key", place.key), ("parent", place.parent or b""), ("head", place.head)):
        record[name][0, : len(key)] = np.frombuffer(key, dtype=np.uint8)
    body = record.tobytes()[CHECK_BYTES:]
    return xxhash.xxh3_64_intdigest(body).to_bytes(CHECK_BYTES, "little") + body


def unpack(data: bytes, first_slot: int = 0) -> list[StoredBlock]:
    """The records in `data` that are whole; the others are free slots."""
    records: npt.NDArray[np.void] = np.frombuffer(data, dtype=RECORD)
    found: list[StoredBlock] = []
    for number in np.flatnonzero(records["magic"] == MAGIC).tolist():
        at = number * RECORD_BYTES
        check = int.from_bytes(data[at : at + CHECK_BYTES], "little")
        if check != xxhash.xxh3_64_intdigest(data[at + CHECK_BYTES : at + RECORD_BYTES]):
            continue
        record = records[number]
        index = int(record["index"])
        parent = BlockKey(record["parent"].tobytes()) if index else None
        place = BlockPlace(
            BlockKey(record["key"].tobytes()), parent, BlockKey(record["head"].tobytes()), index
        )
        found.append(StoredBlock(first_slot + number, int(record["checksum"]), place))
    return found
