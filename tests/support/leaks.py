"""What a test process must not leave behind: children, run folders and shared memory."""

import os
import tempfile
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


def folders() -> list[str]:
    """Run folders and shared memory that clusters of this process made."""
    return [
        str(path)
        for parent in ("/dev/shm", tempfile.gettempdir())
        for path in Path(parent).glob(f"moonpool-{os.getpid()}-*")
    ]
