"""Removes what a cluster left when its launcher was killed without a chance to clean up.

Run as a script with the paths as arguments; its stdin is a pipe that only the launcher holds. A
line on it means that the launcher cleaned up itself. Children die by themselves (see `processes`).
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

CHILDREN_DIE_S = 1.0


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    paths = [Path(argument) for argument in sys.argv[1:]]
    if os.read(0, 16):
        return
    deadline_s = time.monotonic() + CHILDREN_DIE_S
    while time.monotonic() < deadline_s:
        for path in paths:
            remove(path)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
