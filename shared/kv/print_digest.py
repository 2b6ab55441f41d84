"""A digest of a set of fingerprints, whatever the order they come in."""

import numpy as np

from shared.kv.print_table import Prints

_ODD = np.uint64(0x9E3779B97F4A7C15)


class PrintDigest:
    def __init__(self) -> None:
        self.num_blocks = 0
        self._sum = 0
        self._xor = 0

    def add(self, prints: Prints) -> None:
        """Each fingerprint of the set once over all calls."""
        if not len(prints):
            return
        mixed = (prints ^ (prints >> np.uint64(31))) * _ODD
        self.num_blocks += len(prints)
        self._sum = (self._sum + int(mixed.sum(dtype=np.uint64))) & 0xFFFF_FFFF_FFFF_FFFF
        self._xor ^= int(np.bitwise_xor.reduce(prints))

    @property
    def text(self) -> str:
        return f"{self._sum:016x}{self._xor:016x}"
