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
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from shared.transport import segment_memory
from shared.transport.segment_memory import MemoryKindError

MAGIC = b"MOONPOOL"
LAYOUT_VERSION = 1
NONCE_BYTES = 16
# magic, layout version, padding, nonce, number of slots, bytes of a block, offset of slot 0
HEADER = struct.Struct("<8sII16sQQQ")
TABLE_OFFSET = 4096
DATA_ALIGNMENT = 2 << 20
TARGET_PREFIX = "moonpool-"
"""Of a file that a segment's name links to."""
FEW_SLOTS = 8
"""Whose generations are looked at one by one: that takes half the time of numpy's three calls."""


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


HugePages = Literal["off", "try", "require"]


@dataclass(frozen=True, slots=True)
class MemoryWish:
    """What memory the owner of a segment would like, and how badly."""

    huge_pages: HugePages = "off"
    numa_node: int | None = None


def data_offset_of(num_slots: int) -> int:
    end_of_table = TABLE_OFFSET + 8 * num_slots
    return -(-end_of_table // DATA_ALIGNMENT) * DATA_ALIGNMENT


class Segment:
    """A mapped segment. `close` gives the memory back once nobody looks at it any more."""

    def __init__(
        self, info: SegmentInfo, table: mmap.mmap, data: mmap.mmap, descriptor: int | None = None
    ) -> None:
        self.info = info
        self.descriptor = descriptor
        """Of its file, at the owner's; closed with the rest."""
        self._table = table
        self._data = data
        self.generations: npt.NDArray[np.uint64] = np.frombuffer(
            table, dtype=np.uint64, count=info.num_slots, offset=TABLE_OFFSET
        )
        self.data = memoryview(data)[: info.data_bytes]
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.data, dtype=np.uint8)
        self.memory = "4 KiB pages"
        """What the owner got, in words."""

    @classmethod
    def create(
        cls, path: Path, *, num_slots: int, block_bytes: int, wish: MemoryWish | None = None
    ) -> Self:
        """A new zeroed segment with all its memory taken, so that no later write can fail."""
        info = SegmentInfo(
            path=path,
            nonce=secrets.token_bytes(NONCE_BYTES),
            num_slots=num_slots,
            block_bytes=block_bytes,
            data_offset=data_offset_of(num_slots),
        )
        wish = wish or MemoryWish()
        try:
            with segment_memory.on_numa_node(wish.numa_node) as binding:
                return cls._created(info, wish, binding)
        except MemoryKindError as error:
            raise SegmentError(str(error)) from None

    @classmethod
    def _created(cls, info: SegmentInfo, wish: MemoryWish, binding: str) -> Self:
        """On huge pages of a hugetlbfs, else on the tmpfs with what the kernel merges by itself."""
        reasons: list[str] = []
        mounts = segment_memory.huge_mounts() if wish.huge_pages != "off" else []
        for mount in mounts:
            target = mount / f"{TARGET_PREFIX}{info.path.name}"
            try:
                segment = cls._at(target, info, page_bytes=segment_memory.HUGE_PAGE_BYTES)
            except SegmentError as error:
                reasons.append(str(error))
                continue
            info.path.symlink_to(target)
            segment.memory = f"2 MiB pages in {mount}, {binding}"
            return segment
        mode = segment_memory.transparent_huge_mode()
        is_merged = wish.huge_pages != "off" and mode in ("always", "within_size", "advise")
        if wish.huge_pages == "require" and not is_merged:
            reasons.append("no hugetlbfs mounted that this user may write to" * (not mounts))
            raise SegmentError(
                f"MOONPOOL_HUGE_PAGES=require: {'; '.join(filter(None, reasons))}; the kernel's "
                f"huge pages for tmpfs are {mode!r}. Reserve pages (sysctl vm.nr_hugepages) and "
                f"mount a hugetlbfs, or write advise to {segment_memory.SHMEM_HUGE}, or set try"
            )
        segment = cls._at(info.path, info, is_merged=is_merged)
        kind = "4 KiB pages, merged by the kernel where it can" if is_merged else "4 KiB pages"
        wanted = " (no huge pages to be had)" if wish.huge_pages == "try" and not is_merged else ""
        segment.memory = f"{kind}{wanted}, {binding}"
        return segment

    @classmethod
    def _at(
        cls, path: Path, info: SegmentInfo, *, is_merged: bool = False, page_bytes: int = 1
    ) -> Self:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if is_merged:
                _advise(descriptor, info)
            _reserve(descriptor, info, page_bytes)
            table, data = _mapped(descriptor, info, is_owner=True, is_writable=True)
            # Through the mapping: a hugetlbfs takes no write calls.
            table[: HEADER.size] = _packed_header(info)
            return cls(info, table, data, os.dup(descriptor))
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
        if len(slots) <= FEW_SLOTS:
            now_of = self.generations
            return all(now_of[slot] == one for slot, one in zip(slots, generations, strict=True))
        now = self.generations[np.asarray(slots, dtype=np.int64)]
        return bool(np.array_equal(now, np.asarray(generations, dtype=np.uint64)))

    def close(self) -> None:
        """Unmap. Views that others took keep the memory until they are gone."""
        del self.bytes, self.generations
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            os.close(descriptor)
        try:
            self.data.release()
            self._data.close()
            self._table.close()
        except BufferError:
            return  # somebody still has a view; the last one unmaps it


def _reserve(descriptor: int, info: SegmentInfo, page_bytes: int) -> None:
    total = -(-(info.data_offset + info.data_bytes) // page_bytes) * page_bytes
    try:
        os.posix_fallocate(descriptor, 0, total)
    except OSError as error:
        free = os.fstatvfs(descriptor)
        raise SegmentError(
            f"{info.path}: {total} bytes do not fit ({error.strerror}; "
            f"{free.f_bavail * free.f_frsize} bytes are free there). Lower MOONPOOL_POOL_BYTES, "
            "or give the folder more room (docker: --shm-size, else remount the tmpfs)"
        ) from None


def _advise(descriptor: int, info: SegmentInfo) -> None:
    """Said before the pages are made: those that are there are not merged at once."""
    os.ftruncate(descriptor, info.data_offset + info.data_bytes)
    with mmap.mmap(descriptor, info.data_bytes, offset=info.data_offset) as data:
        data.madvise(segment_memory.MADV_HUGEPAGE)


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
        info.data_offset,
        prot=read_write if is_owner else mmap.PROT_READ,
    )
    data = mmap.mmap(
        descriptor,
        os.fstat(descriptor).st_size - info.data_offset,  # whole pages, however large
        prot=read_write if is_writable else mmap.PROT_READ,
        offset=info.data_offset,
    )
    return table, data
