"""Names what of this CPU decides which kernels run, and with them the bits of a result."""

import platform
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
_FLAGS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip


def cpu_isa() -> str:
    """For example `x86_64 AVX512 amx_bf16+avx512_bf16`."""
    present = cpu_flags()
    flags = "+".join(sorted(flag for flag in _FLAGS if flag in present))
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {flags}".strip()


def cpu_flags() -> frozenset[str]:
    if not _CPUINFO.is_file():
        return frozenset()
    for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
