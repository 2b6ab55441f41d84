"""The folders of one running cluster and the promise that they go when it goes."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.launcher.errors import LaunchError

GUARDIAN = Path(__file__).parent / "guardian.py"
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "moonpool-"


class RunFolder:
    """`path` holds logs, settings and server data; `shared_dir` pool segments, in memory."""

    def __init__(self, path: Path | None, *, shared_bytes: int) -> None:
        memory = _memory_for(shared_bytes)
        prefix = f"{PREFIX}{os.getpid()}-"
        if path is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
        else:
            if path.exists() and any(path.iterdir()):
                raise LaunchError(
                    f"the run folder {path} is not empty",
                    hint="it is removed at the end, so choose one that does not exist yet",
                )
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path = path.resolve()
        self.logs = self.path / "logs"
        self.logs.mkdir()
        self.shared_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=memory))
        self._guardian: subprocess.Popen[bytes] | None = None
        self.guard([self.path, self.shared_dir])

    def guard(self, paths: list[Path]) -> None:
        """From now on `paths` are removed even if this process is killed."""
        self._release_guardian()
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARDIAN), *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def remove(self, *, is_keeping_logs: bool) -> None:
        """Remove everything; with `is_keeping_logs` the logs stay in `path`."""
        shutil.rmtree(self.shared_dir, ignore_errors=True)
        if is_keeping_logs:
            for entry in self.path.iterdir():
                if entry != self.logs:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self._release_guardian()

    def _release_guardian(self) -> None:
        if self._guardian is None:
            return
        self._guardian.communicate(b"done\n", timeout=5)
        self._guardian = None


def shared_folders() -> list[Path]:
    """Of all clusters and nodes that were started on this machine, those of the dead too."""
    return sorted(SHARED_MEMORY.glob(f"{PREFIX}*-*"))


def _memory_for(shared_bytes: int) -> Path:
    """A folder in memory with room for the pools."""
    if not SHARED_MEMORY.is_dir():
        raise LaunchError("there is no /dev/shm", hint="moonpool up needs Linux with a tmpfs there")
    room = os.statvfs(SHARED_MEMORY)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < shared_bytes:
        raise LaunchError(
            f"the pools need {shared_bytes >> 20} MiB in /dev/shm, {free_bytes >> 20} are free",
            hint="give a smaller --pool-size, fewer --nodes, or mount a larger /dev/shm",
        )
    return SHARED_MEMORY
