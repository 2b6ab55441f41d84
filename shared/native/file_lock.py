"""A lock between the processes of a host, for files that one of them makes and all use."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

TIMEOUT_S = 600.0
"""Longer than anything takes that is made under such a lock."""
LOOK_INTERVAL_S = 0.05


class LockTimeout(TimeoutError):
    """Another process has held a lock for too long: it hangs, or is stopped."""


@contextmanager
def file_lock(path: Path, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when its holder dies.

    Blocks the thread. LockTimeout when it was not free for so long.
    """
    with path.open("a") as file:
        _lock(file, path, timeout_s)
        yield


def _lock(file: TextIO, path: Path, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise LockTimeout(
                    f"{path} is locked by another process for more than {timeout_s:g} s; "
                    f"see who holds it with `fuser {path}` and end that process"
                ) from None
            time.sleep(LOOK_INTERVAL_S)
        else:
            return
