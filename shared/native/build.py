"""Builds C sources into the cache directory, once per host, compiler and flags. Loads nothing."""

import hashlib
import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shared.native.file_lock import file_lock

TIMEOUT_S = 120.0

log = logging.getLogger("moonpool.native")


def built(
    name: str, command: Sequence[str], sources: Sequence[Path], folder: Path, *, instead: str
) -> Path | None:
    """The shared library that `command` makes of the first source, the others being its headers.

    None where it cannot be made; the log then says that `instead` is used. Its name tells source,
    compiler and flags, so another version of any of them is another library.
    """
    text = b"".join(source.read_bytes() for source in sources)
    try:
        version = subprocess.run(
            [command[0], "-dumpfullversion"], capture_output=True, timeout=TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        log.info("%s: no compiler to build it with (%s); %s", name, error, instead)
        return None
    named = repr((list(command), version, text)).encode()
    digest = hashlib.blake2b(named, digest_size=8).hexdigest()
    library = folder / f"{name}-{digest}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(library.with_suffix(".lock"), 2 * TIMEOUT_S):
            if library.is_file() or _make(name, command, sources[0], library, instead):
                return library
    except OSError as error:
        log.warning("%s: cannot be built in %s (%s); %s", name, folder, error, instead)
    return None


def _make(name: str, command: Sequence[str], source: Path, library: Path, instead: str) -> bool:
    """Under the library's lock. The compiler of a process that was killed may still write: what
    it has begun is removed, and what it writes goes to a name of its own."""
    for abandoned in library.parent.glob(f"{library.stem}.*.unfinished"):
        abandoned.unlink(missing_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}.unfinished")
    try:
        done = subprocess.run(
            [*command, "-o", str(unfinished), str(source)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.warning("%s: the compiler ran longer than %g s; %s", name, TIMEOUT_S, instead)
        unfinished.unlink(missing_ok=True)
        return False
    if done.returncode != 0:
        log.warning("%s: not built; %s: %s", name, instead, done.stderr[:500].strip())
        return False
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())  # a name that outlives a power cut must have its bytes
    unfinished.replace(library)
    return True
