"""Which instructions and flags build the kernels' C source, and where a host rules them out."""

import logging
import shutil
from pathlib import Path
from typing import Literal

from shared.engine.cpu_isa import cpu_flags
from shared.native.build import built

KernelIsa = Literal["avx512", "avx2"]

_HERE = Path(__file__).parent
_SOURCES = tuple(
    _HERE / f"kernels{name}" for name in (".c", "_linear.h", "_product.h", "_avx512.h", "_avx2.h")
)
_NEEDED: dict[KernelIsa, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"),
    "avx2": ("avx2", "fma"),
}
_BF16 = "avx512_bf16"
# No flag that lets the compiler reorder or fuse arithmetic: the source says all of it.
_FLAGS = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fvisibility=hidden",
    "-shared", "-fPIC",
)  # fmt: skip

log = logging.getLogger("moonpool.engine")


def best_isa(flags: frozenset[str], *, is_bfloat16: bool) -> KernelIsa | None:
    """What this CPU runs fastest; None where it has none of them."""
    needed = (*_NEEDED["avx512"], _BF16) if is_bfloat16 else _NEEDED["avx512"]
    if flags.issuperset(needed):
        return "avx512"
    return "avx2" if flags.issuperset(_NEEDED["avx2"]) else None


def build_kernels(
    cache_dir: Path, *, is_bfloat16: bool, isa: KernelIsa | None = None
) -> tuple[Path, KernelIsa] | None:
    """The library, for `isa` or the best; None where the CPU or the lack of a compiler rules it
    out."""
    flags = cpu_flags()
    isa = isa or best_isa(flags, is_bfloat16=is_bfloat16)
    if isa is None or not flags.issuperset(_NEEDED[isa]):
        log.info("kernels: this CPU has no AVX2 or AVX-512; torch's own are used")
        return None
    compiler = shutil.which("gcc")  # its OpenMP is the one that torch has loaded
    if compiler is None:
        log.warning("kernels: no gcc here; torch's own are used, which are slower (install gcc)")
        return None
    command = [compiler, *_FLAGS, *(f"-m{flag}" for flag in _NEEDED[isa])]
    if isa == "avx512" and _BF16 in flags:
        command.append("-mavx512bf16")
    library = built(
        f"kernels-{isa}", command, _SOURCES, cache_dir / "kernels", instead="torch's own are used"
    )
    return None if library is None else (library, isa)
