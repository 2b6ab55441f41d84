"""A store of the SSD tier in memory that can fail: errors, flipped bits, torn writes."""

import errno
import threading

import numpy as np
import numpy.typing as npt

from services.transfer.ssd_records import StoredBlock
from shared.kv.block_tree import BlockPlace


class MemoryStore:
    """Survives the tier over it, as files do."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.blocks: dict[int, tuple[npt.NDArray[np.uint8], int, BlockPlace]] = {}
        self.fails_reading = False
        self.fails_writing: int | None = None
        """The errno of each write."""
        self.tears_writes = False
        self.gate = threading.Event()
        """Reads wait for it."""
        self.gate.set()

    def open(self) -> list[StoredBlock]:
        return [StoredBlock(slot, sum_, place) for slot, (_, sum_, place) in self.blocks.items()]

    def read(self, slot: int, into: npt.NDArray[np.uint8]) -> None:
        self.gate.wait(10)
        if self.fails_reading or slot not in self.blocks:
            raise OSError(errno.EIO, "no such luck")
        into[:] = self.blocks[slot][0]

    def write(
        self, slot: int, data: npt.NDArray[np.uint8], place: BlockPlace, checksum: int
    ) -> None:
        if self.fails_writing is not None:
            raise OSError(self.fails_writing, "no room, or worse")
        copy = data.copy()
        if self.tears_writes:
            copy[len(copy) // 2 :] = 0
        self.blocks[slot] = (copy, checksum, place)

    def forget(self, slot: int) -> None:
        self.blocks.pop(slot, None)

    def close(self) -> None:
        """Nothing to give back."""
