"""The folders of a run go when it ends, however it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.launcher.errors import LaunchError
from scripts.launcher.run_folder import RunFolder
from tests.support.deadline import wait_until


def test_folders_are_removed_at_the_end() -> None:
    folder = RunFolder(None, shared_bytes=0)
    (folder.path / "nats").mkdir()
    (folder.shared_dir / "segment").write_bytes(b"x")
    folder.remove(is_keeping_logs=False)
    assert not folder.path.exists()
    assert not folder.shared_dir.exists()


def test_logs_are_kept_when_wanted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", shared_bytes=0)
    (folder.logs / "gateway-1.log").write_text("why")
    (folder.path / "nats.conf").write_text("")
    folder.remove(is_keeping_logs=True)
    assert [path.name for path in folder.path.iterdir()] == ["logs"]
    assert (folder.logs / "gateway-1.log").read_text() == "why"
    assert not folder.shared_dir.exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(LaunchError, match="is not empty"):
        RunFolder(tmp_path, shared_bytes=0)
    assert (tmp_path / "mine").exists()


def test_pools_that_do_not_fit_in_memory_are_refused_before_anything_starts() -> None:
    with pytest.raises(LaunchError, match="in /dev/shm") as caught:
        RunFolder(None, shared_bytes=1 << 60)
    assert "--pool-size" in caught.value.hint


def test_folders_go_even_if_the_launcher_is_killed() -> None:
    code = (
        "import time\n"
        "from scripts.launcher.run_folder import RunFolder\n"
        "folder = RunFolder(None, shared_bytes=0)\n"
        "print(folder.path, folder.shared_dir, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        paths = [Path(word) for word in launcher.stdout.readline().split()]
        assert len(paths) == 2
        assert all(path.exists() for path in paths)
        launcher.kill()
    wait_until(lambda: not any(path.exists() for path in paths), what="folders are gone")
