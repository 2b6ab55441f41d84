"""Files of dead incarnations go, files of living ones stay."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.transport.node_files import (
    NodeFiles,
    NodeLock,
    SharedFolderError,
    check_socket_path,
    is_alive,
    nodes_in,
    prepare_folder,
    remove_dead,
)


def make(folder: Path, node: str) -> NodeFiles:
    files = NodeFiles(folder, node, "1")
    files.segment.write_bytes(b"segment")
    files.socket.write_bytes(b"socket")
    return files


def test_a_node_lives_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    files = make(tmp_path, "n")
    assert not is_alive(files)
    lock = NodeLock(files)
    assert is_alive(files)
    lock.release()
    assert not is_alive(files)
    lock.release()


def test_only_files_of_the_dead_are_removed(tmp_path: Path) -> None:
    alive, dead, no_lock = (make(tmp_path, name) for name in ("alive", "dead", "nolock"))
    lock = NodeLock(alive)
    NodeLock(dead).release()
    stranger = tmp_path / "notes.txt"
    stranger.write_text("mine")
    assert remove_dead(tmp_path) == [dead, no_lock]
    assert nodes_in(tmp_path) == [alive]
    assert stranger.exists()
    assert alive.segment.exists()
    lock.release()


HOLD_LOCK = """
import sys
from pathlib import Path
from shared.transport.node_files import NodeFiles, NodeLock
lock = NodeLock(NodeFiles(Path(sys.argv[1]), "n", "1"))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_is_dead_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        files = make(tmp_path, "n")
        assert is_alive(files)
        assert remove_dead(tmp_path) == []
        process.kill()
    assert not is_alive(files)
    assert remove_dead(tmp_path) == [files]
    assert list(tmp_path.iterdir()) == []


def test_other_names_are_no_nodes(tmp_path: Path) -> None:
    for name in ("a.seg", "a.b.c.seg", "a.b.txt", "seg"):
        (tmp_path / name).write_text("")
    assert nodes_in(tmp_path) == []
    assert nodes_in(tmp_path / "absent") == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(SharedFolderError, match="MOONPOOL_SHARED_DIR"):
        prepare_folder(occupied / "sub")
    prepare_folder(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    with pytest.raises(SharedFolderError, match="unix socket"):
        check_socket_path(NodeFiles(tmp_path, "n" * 100, "1"))
    check_socket_path(NodeFiles(Path("/dev/shm/moonpool"), "transfer-abcdef", "0" * 16))
