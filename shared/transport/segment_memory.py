"""What kind of memory a segment gets: huge pages, a NUMA node, touched ahead. Linux calls only.

Each function says in words what it did or why it could not; the caller decides what that means.
"""

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

HUGE_PAGE_BYTES = 2 << 20
SHMEM_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
NUMA_NODES = Path("/sys/devices/system/node")
MOUNTS = Path("/proc/self/mounts")
TOUCH_BYTES = 64 << 20
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23
MPOL_DEFAULT, MPOL_BIND = 0, 2
SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}.get(os.uname().machine)
MAX_NUMA_NODES = 1024
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.syscall.restype = ctypes.c_long


class MemoryKindError(Exception):
    """The memory that was asked for is not to be had; says why and what to do."""


def huge_mounts() -> list[Path]:
    """Folders on a hugetlbfs with 2 MiB pages that this user may write to."""
    found = []
    for line in MOUNTS.read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        is_usual = "pagesize=" not in options or "pagesize=2M" in options.split(",")
        if kind == "hugetlbfs" and is_usual and os.access(folder, os.W_OK | os.X_OK):
            found.append(Path(folder))
    return found


def transparent_huge_mode() -> str:
    """What the kernel does with huge pages on a tmpfs: always, within_size, advise, never, …"""
    try:
        chosen = SHMEM_HUGE.read_text()
    except OSError:
        return "never"
    return chosen[chosen.find("[") + 1 : chosen.find("]")]


def numa_nodes() -> list[int]:
    return sorted(
        int(path.name[4:]) for path in NUMA_NODES.glob("node*") if path.name[4:].isdigit()
    )


@contextlib.contextmanager
def on_numa_node(node: int | None) -> Iterator[str]:
    """Pages that this thread makes meanwhile are on that node; yields what was done."""
    nodes = numa_nodes()
    if node is None:
        yield "not bound to a NUMA node"
        return
    if len(nodes) < 2:
        yield f"not bound to NUMA node {node}: this host has one"
        return
    if node not in nodes:
        raise MemoryKindError(f"MOONPOOL_NUMA_NODE={node}: this host has {nodes}")
    _set_policy(MPOL_BIND, node)
    try:
        yield f"bound to NUMA node {node}"
    finally:
        _set_policy(MPOL_DEFAULT, None)


def _set_policy(mode: int, node: int | None) -> None:
    mask = (ctypes.c_ulong * (MAX_NUMA_NODES // 64))()
    if node is not None:
        mask[node // 64] = 1 << node % 64
    number = SYS_SET_MEMPOLICY
    size = ctypes.c_ulong(MAX_NUMA_NODES if node is not None else 0)
    given = ctypes.byref(mask) if node is not None else None
    if number is None or _libc.syscall(ctypes.c_long(number), mode, given, size) != 0:
        reason = os.strerror(ctypes.get_errno()) if number is not None else "unknown machine"
        raise MemoryKindError(
            f"MOONPOOL_NUMA_NODE: memory cannot be bound ({reason}); leave the setting away, or "
            "allow set_mempolicy (containers: seccomp, CAP_SYS_NICE)"
        )


def touch(data: npt.NDArray[np.uint8], threads: ThreadPoolExecutor, stop: threading.Event) -> bool:
    """Have every page there before somebody needs it; content stays. False: the kernel cannot."""
    address = data.ctypes.data
    parts = [
        threads.submit(_populate, address + at, min(TOUCH_BYTES, data.nbytes - at), stop)
        for at in range(0, data.nbytes, TOUCH_BYTES)
    ]
    results = [part.result() for part in parts]
    return all(results)


def _populate(address: int, num_bytes: int, stop: threading.Event) -> bool:
    """ctypes gives up the GIL for this call."""
    while not stop.is_set() and _libc.madvise(address, num_bytes, MADV_POPULATE_WRITE) != 0:
        if ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN):
            return False
    return True
