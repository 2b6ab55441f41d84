"""Names what of this CPU decides which of torch's kernels run, and what ours need."""

import ctypes
import platform
import sys
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
_ARCH_PRCTL, _ASK_FOR, _TILE_DATA = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
_FLAGS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
# By these the libraries behind torch choose among kernels for the same instructions (x86, ARM).
_MODEL_FIELDS = (
    "vendor_id", "cpu family", "model", "CPU implementer", "CPU architecture", "CPU part",
)  # fmt: skip


def cpu_isa(*, cpuinfo: Path = _CPUINFO) -> str:
    """For example `x86_64 AVX512 amx_bf16+avx512_bf16 GenuineIntel/6/143`."""
    values = _first_cpu(cpuinfo)
    present = _flags(values)
    flags = "+".join(sorted(flag for flag in _FLAGS if flag in present))
    isa = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {flags}".strip()
    model = "/".join(values[name] for name in _MODEL_FIELDS if name in values)
    return f"{isa} {model or platform.processor() or 'unknown CPU'}"


def cpu_flags() -> frozenset[str]:
    return _flags(_first_cpu(_CPUINFO))


def may_use_tiles() -> bool:
    """Asks Linux for AMX's tile registers; what is granted holds for all threads of the process."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.syscall(_ARCH_PRCTL, _ASK_FOR, _TILE_DATA) == 0)


def _flags(values: dict[str, str]) -> frozenset[str]:
    return frozenset((values.get("flags") or values.get("Features") or "").split())


def _first_cpu(cpuinfo: Path) -> dict[str, str]:
    """What the system says of the first CPU; the others are taken for the same."""
    values: dict[str, str] = {}
    if not cpuinfo.is_file():
        return values
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        name, separator, value = line.partition(":")
        if not separator:
            if values:
                break
            continue
        values[name.strip()] = value.strip()
    return values
