"""The files of the SSD tier: what survives, what is torn, what happens without room."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from services.transfer.ssd_files import SsdError, SsdFiles
from services.transfer.ssd_records import RECORD_BYTES, pack, unpack
from shared.kv.block_tree import BlockPlace
from shared.kv.ids import BlockKey

ROOT = bytes(16)
HEAD = BlockKey(b"h" * 16)


def place(index: int) -> BlockPlace:
    key = BlockKey(bytes([index + 1]) * 16)
    parent = BlockKey(bytes([index]) * 16) if index else None
    return BlockPlace(key, parent, HEAD, index)


def files_in(tmp_path: Path, block_bytes: int = 8192, num_slots: int = 4) -> SsdFiles:
    stride = -(-block_bytes // 4096) * 4096
    return SsdFiles(tmp_path, "node", ROOT, block_bytes, num_slots * stride)


@pytest.mark.parametrize("block_bytes", [8192, 5000])
def test_blocks_and_records_come_back_after_a_restart(tmp_path: Path, block_bytes: int) -> None:
    files = files_in(tmp_path, block_bytes)
    assert files.open() == []
    data = np.arange(block_bytes, dtype=np.uint8)
    for slot in (2, 0):
        files.write(slot, data + slot, place(slot), 70 + slot)
    files.forget(0)
    files.close()
    again = files_in(tmp_path, block_bytes)
    (found,) = again.open()
    assert (found.slot, found.checksum, found.place) == (2, 72, place(2))
    into = np.zeros(block_bytes, dtype=np.uint8)
    again.read(2, into)
    assert np.array_equal(into, data + 2)
    again.close()


def test_a_record_that_was_torn_is_no_block() -> None:
    data = bytearray(pack(place(0), 5) + pack(place(1), 6) + bytes(RECORD_BYTES))
    assert [block.slot for block in unpack(bytes(data), 10)] == [10, 11]
    for at in range(RECORD_BYTES):
        torn = bytearray(data)
        torn[at] ^= 1
        assert [block.slot for block in unpack(bytes(torn), 10)] == [11]
    assert unpack(bytes(data[: RECORD_BYTES // 2]) + bytes(RECORD_BYTES // 2)) == []


def test_a_folder_has_one_user(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.open()
    with pytest.raises(SsdError, match="MOONPOOL_INSTANCE_ID"):
        files_in(tmp_path).open()
    files.close()
    other = files_in(tmp_path)
    other.open()
    other.close()


def test_of_other_formats_only_the_newest_is_set_aside(tmp_path: Path) -> None:
    for number in range(4):
        files = SsdFiles(tmp_path, "node", bytes([number]) * 16, 8192, 4 * 8192)
        files.open()
        os.utime(files.folder, (number, number))
        files.close()
    left = sorted(path.name for path in (tmp_path / "node").iterdir() if path.is_dir())
    assert left == [(bytes([number]) * 16).hex() for number in (2, 3)]


def test_files_of_another_block_size_are_no_blocks(tmp_path: Path) -> None:
    files = files_in(tmp_path, 8192)
    files.open()
    files.write(1, np.zeros(8192, dtype=np.uint8), place(0), 1)
    files.close()
    other = files_in(tmp_path, 4096)
    assert other.open() == []
    other.close()


def test_a_budget_without_room_for_a_block_says_which_setting(tmp_path: Path) -> None:
    with pytest.raises(SsdError, match="MOONPOOL_SSD_BYTES"):
        SsdFiles(tmp_path, "node", ROOT, 8192, 8191).open()


CAPPED = """
import sys
from pathlib import Path
from services.transfer import ssd_files
ssd_files.FILE_BYTES = int(sys.argv[2])
files = ssd_files.SsdFiles(Path(sys.argv[1]), "node", bytes(16), 8192, 64 * 8192)
try:
    files.open()
    print(files.num_slots)
except ssd_files.SsdError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("file_slots", "max_slots", "expected"), [(64, 16, "MOONPOOL_SSD_DIR"), (8, 8, "64")]
)
def test_a_disk_without_room_is_an_error_before_anything_is_written(
    tmp_path: Path, file_slots: int, max_slots: int, expected: str
) -> None:
    """The kernel's limit on a file's size stands for a full disk."""
    limit = max_slots * 8192
    done = subprocess.run(
        [sys.executable, "-c", CAPPED, str(tmp_path), str(file_slots * 8192)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        preexec_fn=lambda: (
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            __import__("signal").signal(25, __import__("signal").SIG_IGN),
        ),
    )
    assert expected in done.stdout


@pytest.mark.parametrize("block_bytes", [8192, 5000])
def test_a_disk_that_fails_is_an_os_error_whatever_the_size(
    tmp_path: Path, block_bytes: int
) -> None:
    files = files_in(tmp_path, block_bytes)
    files.open()
    data = np.zeros(block_bytes, dtype=np.uint8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            files.write(1, data, place(0), 7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    os.truncate(files.folder / "blocks-00000.bin", 0)
    with pytest.raises(OSError, match="shorter"):
        files.read(1, data)
    files.close()
