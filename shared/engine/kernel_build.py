"""Builds the kernels' C source into the cache directory, once per host and compiler."""

import hashlib
import logging
import shutil
import subprocess
from pathlib import Path

from shared.engine.cpu_isa import cpu_flags
from shared.engine.file_lock import file_lock

_SOURCE = Path(__file__).with_name("kernels.c")
_HEADER = Path(__file__).with_name("kernels_product.h")
_NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")
_BF16 = "avx512_bf16"
# No flag that lets the compiler reorder or fuse arithmetic: the source says all of it.
_FLAGS = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fvisibility=hidden",
    "-shared", "-fPIC", *(f"-m{flag}" for flag in _NEEDED),
)  # fmt: skip
_TIMEOUT_S = 120.0

log = logging.getLogger("moonpool.engine")


def build_kernels(cache_dir: Path) -> Path | None:
    """The library; None where this CPU or the lack of a compiler rules it out."""
    flags = cpu_flags()
    missing = [flag for flag in _NEEDED if flag not in flags]
    if missing:
        log.info("kernels: this CPU has no %s; torch's own are used", ", ".join(missing))
        return None
    compiler = shutil.which("gcc")  # its OpenMP is the one that torch has loaded
    if compiler is None:
        log.warning("kernels: no gcc here; torch's own are used, which are slower (install gcc)")
        return None
    command = [compiler, *_FLAGS, *(["-mavx512bf16"] if _BF16 in flags else [])]
    return _built(command, cache_dir / "kernels")


def _built(command: list[str], folder: Path) -> Path | None:
    source = _SOURCE.read_bytes() + _HEADER.read_bytes()
    version = subprocess.run(
        [command[0], "-dumpfullversion"], capture_output=True, timeout=_TIMEOUT_S, check=False
    ).stdout
    digest = hashlib.blake2b(repr((command, version, source)).encode(), digest_size=8).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"kernels-{digest}.so"
    with file_lock(library.with_suffix(".lock")):
        if library.is_file():
            return library
        unfinished = library.with_suffix(".unfinished")
        try:
            done = subprocess.run(
                [*command, "-o", str(unfinished), str(_SOURCE)],
                capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            log.warning("kernels: the compiler ran longer than %g s", _TIMEOUT_S)
            return None
        if done.returncode != 0:
            log.warning("kernels: not built; torch's own are used: %s", done.stderr[:500].strip())
            return None
        unfinished.replace(library)
    return library
