"""What the index keeps of a block: 8 bytes of its key, and how deep in its chain it is."""

import numpy as np

from shared.kv.ids import KEY_BYTES
from shared.kv.print_table import FIRST_PRINT, Classes, Prints

FINGERPRINT_BYTES = 8
FINE_CLASSES = 64
COARSE_BLOCKS = 64
NUM_CLASSES = 128
"""Depth classes: one for each of the first 64 blocks of a chain, then one for 64 blocks each."""


def fingerprint(key: bytes) -> int:
    """The part of a key that the view knows."""
    value = int.from_bytes(key[:FINGERPRINT_BYTES], "little")
    return value if value >= FIRST_PRINT else value + FIRST_PRINT


def fingerprints(keys: bytes) -> Prints:
    """The fingerprints of packed keys."""
    if len(keys) % KEY_BYTES:
        raise ValueError(f"keys: {len(keys)} bytes are no whole keys of {KEY_BYTES}")
    return as_prints(np.frombuffer(keys, np.uint64)[::2])


def as_prints(values: Prints) -> Prints:
    """A copy, moved away from the marks of the table."""
    return np.where(values < FIRST_PRINT, values + np.uint64(FIRST_PRINT), values)


def depth_class(index: int) -> int:
    """Never less for a later block of a chain."""
    if index < FINE_CLASSES:
        return index
    return min(FINE_CLASSES + (index - FINE_CLASSES) // COARSE_BLOCKS, NUM_CLASSES - 1)


def depth_classes(start: int, count: int) -> Classes:
    """Of `count` blocks that follow one another from `start`."""
    return _CLASS_OF[np.minimum(np.arange(start, start + count), len(_CLASS_OF) - 1)]


_CLASS_OF: Classes = np.array(
    [depth_class(index) for index in range(FINE_CLASSES + NUM_CLASSES * COARSE_BLOCKS)], np.uint8
)
