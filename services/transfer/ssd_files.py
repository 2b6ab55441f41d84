"""The files of the SSD tier: packed blocks and their index. Blocking calls, for threads only.

    <MOONPOOL_SSD_DIR>/<node>/lock              held by the transfer that uses the folder
    <MOONPOOL_SSD_DIR>/<node>/<root>/tier.json  what the files were made for
                                     index.bin  a record a slot (ssd_records.py)
                                     blocks-….bin  slots, packed

Decides nothing: which block goes into which slot is the tier's to say. Reads and writes go past the
page cache (O_DIRECT) where the file system can; whoever reads verifies the checksum.
"""

import errno
import fcntl
import json
import logging
import mmap
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.transfer.ssd_records import EMPTY, RECORD_BYTES, StoredBlock, pack, unpack
from shared.kv.block_tree import BlockPlace

log = logging.getLogger("moonpool.transfer.ssd")
Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 4096
FILE_BYTES = 1 << 30
ROOT_NAME = re.compile("[0-9a-f]{32}")
VERSION = 1
LOAD_RECORDS = 4_096
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SsdError(Exception):
    """The folder cannot be used; says why and what to do."""


def stride_of(block_bytes: int) -> int:
    """Bytes of a slot: whole sectors."""
    return -(-block_bytes // ALIGNMENT) * ALIGNMENT


class SsdFiles:
    """Open files of one node, root and block size."""

    def __init__(self, folder: Path, node: str, root: bytes, block_bytes: int, num_bytes: int):
        self._node_folder = folder / node
        self.folder = self._node_folder / root.hex()
        self._block_bytes = block_bytes
        self._stride = stride_of(block_bytes)
        self._slots_per_file = max(1, FILE_BYTES // self._stride)
        self.num_slots = num_bytes // self._stride
        """Wanted; after `open`, as many as there is room for."""
        self.is_direct = True
        self._lock = -1
        self._index = -1
        self._data: list[int] = []

    def open(self) -> list[StoredBlock]:
        """Take the folder and its room; returns what an earlier process left in it."""
        if self.num_slots < 1:
            raise SsdError(
                f"MOONPOOL_SSD_BYTES has no room for one block of {self._stride} bytes; raise it"
            )
        try:
            self._take_folder()
            self._set_others_aside()
            self._open_index(is_known=self._check_purpose())
            self._open_data()
            os.ftruncate(self._index, self.num_slots * RECORD_BYTES)
            return self._load()
        except OSError as error:
            self.close()
            raise SsdError(
                f"MOONPOOL_SSD_DIR: {self.folder}: {error.strerror}; name a folder on a disk with "
                "room that this user may write to"
            ) from None
        except SsdError:
            self.close()
            raise

    def read(self, slot: int, into: Bytes) -> None:
        """A whole block; OSError when the disk fails or the file is short."""
        descriptor, offset = self._place(slot)
        if self._is_in_place(into):
            _read_all(descriptor, into.data, offset)
            return
        # The view is let go before the buffer: an error would keep it, and a buffer in use stays.
        with mmap.mmap(-1, self._stride) as buffer, memoryview(buffer) as view:
            _read_all(descriptor, view, offset)
            into[:] = np.frombuffer(buffer[: self._block_bytes], dtype=np.uint8)

    def write(self, slot: int, data: Bytes, place: BlockPlace, checksum: int) -> None:
        """Its record is void until the block is written."""
        descriptor, offset = self._place(slot)
        self.forget(slot)
        if self._is_in_place(data):
            _write_all(descriptor, data.data, offset)
        else:
            with mmap.mmap(-1, self._stride) as buffer, memoryview(buffer) as view:
                buffer[: self._block_bytes] = data.tobytes()
                _write_all(descriptor, view, offset)
        os.pwrite(self._index, pack(place, checksum), slot * RECORD_BYTES)

    def forget(self, slot: int) -> None:
        """The slot holds no block any more, also after a restart."""
        os.pwrite(self._index, EMPTY, slot * RECORD_BYTES)

    def close(self) -> None:
        for descriptor in (*self._data, self._index, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._data, self._index, self._lock = [], -1, -1

    # --- opening -------------------------------------------------------------------------------

    def _take_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._node_folder / "lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SsdError(
                f"{self._node_folder} is used by another process; give each transfer its own "
                "MOONPOOL_INSTANCE_ID"
            ) from None

    def _set_others_aside(self) -> None:
        """Blocks of other kv_formats: the newest stay until they are wanted again, others go."""
        others = [
            path
            for path in self._node_folder.iterdir()
            if ROOT_NAME.fullmatch(path.name) and path.is_dir() and path != self.folder
        ]
        others.sort(key=lambda path: path.stat().st_mtime)
        for path in others[:-1]:
            shutil.rmtree(path)
        if others:
            log.info("%s holds blocks of another kv_format and is set aside", others[-1])

    def _check_purpose(self) -> bool:
        """False: what is here was made for something else, or half made."""
        purpose: dict[str, Any] = {"version": VERSION, "block_bytes": self._block_bytes}
        path = self.folder / "tier.json"
        try:
            if json.loads(path.read_text()) == purpose:
                os.utime(self.folder)
                return True
        except (OSError, ValueError):
            pass
        path.write_text(json.dumps(purpose))
        return False

    def _open_index(self, *, is_known: bool) -> None:
        """With all its room, as the data has: a record is written beside each block."""
        path = self.folder / "index.bin"
        self._index = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not is_known:
            os.ftruncate(self._index, 0)
        _give_room(self._index, self.num_slots * RECORD_BYTES)

    def _open_data(self) -> None:
        """Take all the room now, so that no later write finds the disk full."""
        num_files = -(-self.num_slots // self._slots_per_file)
        for number in range(num_files):
            count = min(self._slots_per_file, self.num_slots - number * self._slots_per_file)
            descriptor = self._open_direct(self.folder / f"blocks-{number:05d}.bin")
            self._data.append(descriptor)
            try:
                _give_room(descriptor, count * self._stride)
            except OSError as error:
                if error.errno not in NO_ROOM or number == 0:
                    raise
                os.close(self._data.pop())
                self.num_slots = number * self._slots_per_file
                log.warning(
                    "%s: %s; the SSD tier is %d bytes large instead",
                    self.folder,
                    error.strerror,
                    self.num_slots * self._stride,
                )
                break
        for number in range(len(self._data), _num_data_files(self.folder)):
            (self.folder / f"blocks-{number:05d}.bin").unlink(missing_ok=True)

    def _open_direct(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.is_direct = False
            return os.open(path, flags, 0o600)

    def _load(self) -> list[StoredBlock]:
        found: list[StoredBlock] = []
        for first in range(0, self.num_slots, LOAD_RECORDS):
            data = os.pread(self._index, LOAD_RECORDS * RECORD_BYTES, first * RECORD_BYTES)
            found += unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES], first)
        return found

    # --- places --------------------------------------------------------------------------------

    def _place(self, slot: int) -> tuple[int, int]:
        number, place = divmod(slot, self._slots_per_file)
        return self._data[number], place * self._stride

    def _is_in_place(self, data: Bytes) -> bool:
        """The disk can read and write these bytes where they are."""
        is_aligned = data.ctypes.data % ALIGNMENT == 0 and data.nbytes == self._stride
        return is_aligned or (not self.is_direct and data.nbytes == self._stride)


def _num_data_files(folder: Path) -> int:
    return len(list(folder.glob("blocks-*.bin")))


def _give_room(descriptor: int, num_bytes: int) -> None:
    os.ftruncate(descriptor, num_bytes)
    os.posix_fallocate(descriptor, 0, num_bytes)


def _read_all(descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise OSError(errno.EIO, "the file is shorter than it was made")
        done += count


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwritev(descriptor, [view[done:]], offset + done)
