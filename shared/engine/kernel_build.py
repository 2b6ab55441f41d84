"""Which instructions and flags build the kernels' C source, and where a host rules them out."""

import logging
import shutil
from pathlib import Path
from typing import Literal

from shared.engine.cpu_isa import cpu_flags, may_use_tiles
from shared.native.build import built

KernelIsa = Literal["amx", "avx512", "avx2"]

_HERE = Path(__file__).parent
_SOURCES = tuple(
    _HERE / f"kernels{name}"
    for name in (".c", "_linear.h", "_product.h", "_amx.h", "_avx512.h", "_avx2.h")
)
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")
_BF16 = "avx512_bf16"
_NEEDED: dict[KernelIsa, tuple[str, ...]] = {
    "amx": (*_AVX512, _BF16, "amx_tile", "amx_bf16"),
    "avx512": _AVX512,
    "avx2": ("avx2", "fma"),
}
# No flag that lets the compiler reorder or fuse arithmetic: the source says all of it.
_FLAGS = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fvisibility=hidden",
    "-shared", "-fPIC",
)  # fmt: skip

log = logging.getLogger("moonpool.engine")


def fastest_isas(flags: frozenset[str], *, is_bfloat16: bool) -> list[KernelIsa]:
    """What a CPU with these flags can run, the fastest first."""
    isas: list[KernelIsa] = []
    if is_bfloat16 and flags.issuperset(_NEEDED["amx"]):
        isas.append("amx")
    if flags.issuperset(_NEEDED["avx512"]) and (_BF16 in flags or not is_bfloat16):
        isas.append("avx512")
    if flags.issuperset(_NEEDED["avx2"]):
        isas.append("avx2")
    return isas


def build_kernels(
    cache_dir: Path, *, is_bfloat16: bool, isa: KernelIsa | None = None
) -> tuple[Path, KernelIsa] | None:
    """The library, for `isa` or the best that can be built; None where the CPU, the system or the
    lack of a compiler rules it out."""
    flags = cpu_flags()
    isas = fastest_isas(flags, is_bfloat16=is_bfloat16)
    if isa is not None:
        isas = [isa] if isa in isas else []
    if "amx" in isas and not may_use_tiles():
        log.warning(
            "kernels: the system keeps AMX from this process; slower ones are used (it needs Linux "
            "5.16 or later, and arch_prctl allowed)"
        )
        isas.remove("amx")
    if not isas:
        log.info("kernels: this process cannot use %s", isa or "AVX2 or AVX-512")
        return None
    compiler = shutil.which("gcc")  # its OpenMP is the one that torch has loaded
    if compiler is None:
        log.warning("kernels: no gcc here; torch's own are used, which are slower (install gcc)")
        return None
    for each, following in zip(isas, [*isas[1:], None], strict=True):
        library = built(
            f"kernels-{each}",
            [compiler, *_FLAGS, *_target(each, flags)],
            _SOURCES,
            cache_dir / "kernels",
            instead="torch's own are used" if following is None else f"{following} is tried",
        )
        if library is not None:
            return library, each
    return None


def _target(isa: KernelIsa, flags: frozenset[str]) -> list[str]:
    """The compiler's options for it."""
    wanted = [*_NEEDED[isa], *([_BF16] if isa == "avx512" and _BF16 in flags else [])]
    return [f"-m{flag.replace('avx512_', 'avx512').replace('_', '-')}" for flag in wanted]
