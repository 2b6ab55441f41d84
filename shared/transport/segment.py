"""A node's memory segment: header, table of generations, slots. Knows nothing of what they hold.

One file on a tmpfs, named by incarnation. Its owner alone writes the header and the table; workers
write the bytes of their own slots; peers map it read-only.
"""

import mmap
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

MAGIC = b"MOONPOOL"
LAYOUT_VERSION = 1
NONCE_BYTES = 16
# magic, layout version, padding, nonce, number of slots, bytes of a block, offset of slot 0
HEADER = struct.Struct("<8sII16sQQQ")
TABLE_OFFSET = 4096
DATA_ALIGNMENT = 2 << 20


class SegmentError(Exception):
    """A segment that cannot be made or is not the one it should be; says what to do."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Where a segment is and what its header says."""

    path: Path
    nonce: bytes
    num_slots: int
    block_bytes: int
    data_offset: int

    @property
    def data_bytes(self) -> int:
        return self.num_slots * self.block_bytes


def data_offset_of(num_slots: int) -> int:
    end_of_table = TABLE_OFFSET + 8 * num_slots
    return -(-end_of_table // DATA_ALIGNMENT) * DATA_ALIGNMENT


class Segment:
    """A mapped segment. `close` gives the memory back once nobody looks at it any more."""

    def __init__(self, info: SegmentInfo, table: mmap.mmap, data: mmap.mmap) -> None:
        self.info = info
        self._table = table
        self._data = data
        self.generations: npt.NDArray[np.uint64] = np.frombuffer(
            table, dtype=np.uint64, count=info.num_slots, offset=TABLE_OFFSET
        )
        self.data = memoryview(data)[: info.data_bytes]
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.data, dtype=np.uint8)

    @classmethod
    def create(cls, path: Path, *, num_slots: int, block_bytes: int) -> Self:
        """A new zeroed segment with all its memory taken, so that no later write can fail."""
        info = SegmentInfo(
            path=path,
            nonce=secrets.token_bytes(NONCE_BYTES),
            num_slots=num_slots,
            block_bytes=block_bytes,
            data_offset=data_offset_of(num_slots),
        )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _reserve(descriptor, info)
            os.pwrite(descriptor, _packed_header(info), 0)
            return cls(info, *_mapped(descriptor, info, is_owner=True, is_writable=True))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, info: SegmentInfo, *, is_writable: bool) -> Self:
        """Map an existing segment; SegmentError when it is not the one that `info` means."""
        flags = os.O_RDWR if is_writable else os.O_RDONLY
        try:
            descriptor = os.open(info.path, flags)
        except OSError as error:
            raise SegmentError(f"{info.path}: cannot be mapped: {error.strerror}") from None
        try:
            found = _read_header(descriptor, info.path)
            for field in ("nonce", "num_slots", "block_bytes", "data_offset"):
                if getattr(found, field) != getattr(info, field):
                    raise SegmentError(
                        f"{info.path}: {field} is not what its owner described; "
                        "another incarnation made this file, ask the node again"
                    )
            return cls(info, *_mapped(descriptor, info, is_owner=False, is_writable=is_writable))
        finally:
            os.close(descriptor)

    def block(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of one slot, in place."""
        start = slot * self.info.block_bytes
        return self.bytes[start : start + self.info.block_bytes]

    def generations_hold(self, slots: list[int], generations: list[int]) -> bool:
        """Whether every slot still is in the use that the generation names."""
        if not slots:
            return True
        now = self.generations[np.asarray(slots, dtype=np.int64)]
        return bool(np.array_equal(now, np.asarray(generations, dtype=np.uint64)))

    def close(self) -> None:
        """Unmap. Views that others took keep the memory until they are gone."""
        del self.bytes, self.generations
        try:
            self.data.release()
            self._data.close()
            self._table.close()
        except BufferError:
            return  # somebody still has a view; the last one unmaps it


def _reserve(descriptor: int, info: SegmentInfo) -> None:
    total = info.data_offset + info.data_bytes
    try:
        os.posix_fallocate(descriptor, 0, total)
    except OSError as error:
        free = os.fstatvfs(descriptor)
        raise SegmentError(
            f"{info.path}: {total} bytes do not fit ({error.strerror}; "
            f"{free.f_bavail * free.f_frsize} bytes are free there). Lower MOONPOOL_POOL_BYTES, "
            "or give the folder more room (docker: --shm-size, else remount the tmpfs)"
        ) from None


def _packed_header(info: SegmentInfo) -> bytes:
    return HEADER.pack(
        MAGIC,
        LAYOUT_VERSION,
        0,
        info.nonce,
        info.num_slots,
        info.block_bytes,
        info.data_offset,
    )


def _read_header(descriptor: int, path: Path) -> SegmentInfo:
    raw = os.pread(descriptor, HEADER.size, 0)
    if len(raw) < HEADER.size:
        raise SegmentError(f"{path}: too short for a segment")
    magic, version, _, nonce, num_slots, block_bytes, data_offset = HEADER.unpack(raw)
    if magic != MAGIC or version != LAYOUT_VERSION:
        raise SegmentError(
            f"{path}: not a segment of layout {LAYOUT_VERSION}; run one version of moonpool on "
            "all nodes of a host"
        )
    info = SegmentInfo(path, nonce, num_slots, block_bytes, data_offset)
    # A file cut short would end a reader with SIGBUS instead of an error.
    if os.fstat(descriptor).st_size < data_offset + info.data_bytes:
        raise SegmentError(f"{path}: shorter than its header says")
    return info


def _mapped(
    descriptor: int, info: SegmentInfo, *, is_owner: bool, is_writable: bool
) -> tuple[mmap.mmap, mmap.mmap]:
    read_write = mmap.PROT_READ | mmap.PROT_WRITE
    table = mmap.mmap(
        descriptor,
        TABLE_OFFSET + 8 * info.num_slots,
        prot=read_write if is_owner else mmap.PROT_READ,
    )
    data = mmap.mmap(
        descriptor,
        info.data_bytes,
        prot=read_write if is_writable else mmap.PROT_READ,
        offset=info.data_offset,
    )
    return table, data
