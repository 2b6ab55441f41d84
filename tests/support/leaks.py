"""What a test process must not leave behind: children and shared memory."""

import os
from pathlib import Path

import psutil


def children() -> list[str]:
    """Living child processes of this process, as text."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{child.pid}: {' '.join(child.cmdline())[:120]}")
        except psutil.NoSuchProcess:
            continue
    return found


def shared_memory() -> list[str]:
    """Shared memory folders that clusters of this process made."""
    return [str(path) for path in Path("/dev/shm").glob(f"moonpool-{os.getpid()}-*")]
