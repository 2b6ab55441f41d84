"""The lock between processes: one holder, free when it dies, and no wait for ever."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shared.native.file_lock import LockTimeout, file_lock

HOLDER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from shared.native.file_lock import file_lock
    with file_lock(Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(600)
    """
)


def test_who_waits_for_a_process_that_hangs_is_told_and_gets_it_when_that_one_is_gone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "made.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(LockTimeout, match=f"fuser {path}"), file_lock(path, 0.2):
                pytest.fail("two hold one lock")
        finally:
            holder.kill()
    with file_lock(path, 10.0):
        pass


def test_it_can_be_taken_again_after_an_error_under_it(tmp_path: Path) -> None:
    path = tmp_path / "made.lock"
    with pytest.raises(ValueError, match="under it"), file_lock(path):
        raise ValueError("under it")
    with file_lock(path, 0.0):
        pass
