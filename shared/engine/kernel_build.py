"""Which flags build the kernels' C source, and where a host rules them out."""

import logging
import shutil
from pathlib import Path

from shared.engine.cpu_isa import cpu_flags
from shared.native.build import built

_SOURCE = Path(__file__).with_name("kernels.c")
_HEADER = Path(__file__).with_name("kernels_product.h")
_NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")
_BF16 = "avx512_bf16"
# No flag that lets the compiler reorder or fuse arithmetic: the source says all of it.
_FLAGS = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fvisibility=hidden",
    "-shared", "-fPIC", *(f"-m{flag}" for flag in _NEEDED),
)  # fmt: skip

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
    return built(
        "kernels",
        command,
        (_SOURCE, _HEADER),
        cache_dir / "kernels",
        instead="torch's own are used",
    )
