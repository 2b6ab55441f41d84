"""The files of nodes in the shared folder: names, locks, who is alive. Never touches a live one's.

A live transfer holds an exclusive flock on its lock file; the kernel drops it when it dies.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.transport.segment import TARGET_PREFIX

SEGMENT = ".seg"
SOCKET = ".sock"
LOCK = ".lock"
MAX_SOCKET_PATH_BYTES = 107


class SharedFolderError(Exception):
    """The shared folder cannot be used; says why and what to do."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Paths of one incarnation of one node."""

    folder: Path
    node: str
    incarnation: str

    @property
    def segment(self) -> Path:
        return self._path(SEGMENT)

    @property
    def socket(self) -> Path:
        return self._path(SOCKET)

    @property
    def lock(self) -> Path:
        return self._path(LOCK)

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.node}.{self.incarnation}{suffix}"

    def missing(self, *, is_formatted: bool) -> list[Path]:
        """What a live node must have and somebody deleted: nobody could attach or read it."""
        wanted = [self.lock, self.socket, *([self.segment] if is_formatted else [])]
        return [path for path in wanted if not path.exists()]

    def remove(self) -> None:
        """The lock last: as long as it is there, the rest has an owner or a cleaner."""
        _remove_target(self.segment)
        for path in (self.socket, self.segment, self.lock):
            path.unlink(missing_ok=True)

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The node that `path` belongs to, None when its name is none of ours."""
        parts = path.name.split(".")
        if len(parts) != 3 or f".{parts[2]}" not in (SEGMENT, SOCKET, LOCK):
            return None
        return cls(path.parent, parts[0], parts[1])


class NodeLock:
    """The proof that this incarnation lives; held until `release` or the end of the process."""

    def __init__(self, files: NodeFiles) -> None:
        while True:
            self._descriptor = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if _is_same_file(self._descriptor, files.lock):
                return
            # A cleaner took the file for a dead one's before it was locked: make it again.
            os.close(self._descriptor)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def prepare_folder(folder: Path) -> None:
    """Make the folder for this user alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "no permission to write")
    except OSError as error:
        raise SharedFolderError(
            f"MOONPOOL_SHARED_DIR={folder}: {error.strerror}; name a folder on a tmpfs that this "
            "user may write to"
        ) from None


def check_socket_path(files: NodeFiles) -> None:
    length = len(os.fsencode(files.socket))
    if length > MAX_SOCKET_PATH_BYTES:
        raise SharedFolderError(
            f"MOONPOOL_SHARED_DIR={files.folder}: {files.socket} has {length} bytes, a unix socket "
            f"takes {MAX_SOCKET_PATH_BYTES}; shorten the folder or MOONPOOL_INSTANCE_ID"
        )


def is_alive(files: NodeFiles) -> bool:
    """Whether the process that made these files still runs."""
    try:
        descriptor = os.open(files.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def nodes_in(folder: Path) -> list[NodeFiles]:
    """Every node with a file in the folder, dead or alive, by name."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    found = {files for path in paths if (files := NodeFiles.of(path)) is not None}
    return sorted(found, key=lambda files: (files.node, files.incarnation))


def remove_dead(folder: Path) -> list[NodeFiles]:
    """Unlink what dead incarnations left; returns them."""
    return [files for files in nodes_in(folder) if _remove_if_dead(files)]


def _remove_if_dead(files: NodeFiles) -> bool:
    try:
        descriptor = os.open(files.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        files.remove()  # an owner makes its lock first and removes it last
        return True
    except OSError:
        return False
    try:
        # Held while unlinking, so that nobody starts to live under these names meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files.remove()
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove_target(segment: Path) -> None:
    """The memory of a segment may be elsewhere, such as on a hugetlbfs."""
    if segment.is_symlink():
        target = segment.readlink()
        if target.name == f"{TARGET_PREFIX}{segment.name}":
            target.unlink(missing_ok=True)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
