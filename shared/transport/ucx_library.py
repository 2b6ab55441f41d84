"""Finds libucp and loads it: from a path, from the nixl-cu12 wheel, or the system's.

Opens no context, knows no devices. Loaded once a process; never unloaded.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from shared.transport.ucx_abi import CDEF, LIBC_CDEF

MIN_VERSION = (1, 22)
WHEEL = "nixl_cu12"
SYSTEM_LIBRARY = "libucp.so.0"
HOW_TO_GET = (
    "pip install --no-deps nixl-cu12, or install UCX 1.22 or newer, or name its libucp in "
    "MOONPOOL_UCX_LIBRARY"
)
# Read by UCX when it is loaded. Its log goes to stdout and its signal handlers replace Python's
# unless it is told otherwise.
LOAD_ENVIRONMENT = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_LOG_FILE": "stderr",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
PROVIDERS = ("/usr/lib/*/libibverbs/lib*-rdmav*.so", "/usr/lib64/libibverbs/lib*-rdmav*.so")
DEVICES = Path("/sys/class/infiniband")
NETLINK = ("libnl-3.so.200", "libnl-route-3.so.200")
_opened: list[Any] = []


class UcxUnavailable(Exception):
    """There is no libucp to use here; says why and what to do."""


@dataclass(frozen=True, slots=True)
class UcxLibrary:
    """A loaded libucp. `ffi` and `lib` are cffi's, without static types."""

    ffi: Any
    lib: Any
    path: str
    source: str
    version: tuple[int, int, int]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    def status_text(self, status: int) -> str:
        return str(self.ffi.string(self.lib.ucs_status_string(status)).decode())


@cache
def load_ucx(path: str = "") -> UcxLibrary:
    """The first libucp found, in the order above; UcxUnavailable says what was tried."""
    try:
        from cffi import FFI  # parsing takes 0.1 s: only who uses it pays
    except ImportError:
        raise UcxUnavailable("the package cffi is missing: pip install 'moonpool[rdma]'") from None
    ffi = FFI()
    ffi.cdef(CDEF + LIBC_CDEF)
    with _load_environment():
        lib, found, source = _open(ffi, path)
    numbers = ffi.new("unsigned[3]")
    lib.ucp_get_version(numbers, numbers + 1, numbers + 2)
    version = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    if version[:2] < MIN_VERSION:
        raise UcxUnavailable(
            f"{found} is UCX {'.'.join(map(str, version))}, {MIN_VERSION[0]}.{MIN_VERSION[1]} or "
            f"newer is needed: {HOW_TO_GET}"
        )
    return UcxLibrary(ffi, lib, found, source, version)


def _open(ffi: Any, path: str) -> tuple[Any, str, str]:
    if path:
        try:
            return ffi.dlopen(path, ffi.RTLD_NOW), path, "MOONPOOL_UCX_LIBRARY"
        except OSError as error:
            raise UcxUnavailable(f"MOONPOOL_UCX_LIBRARY={path}: {error}") from None
    problems = []
    folder = wheel_folder()
    if folder is None:
        problems.append(f"the package {WHEEL.replace('_', '-')} is not installed")
    else:
        try:
            return *_open_wheel(ffi, folder), "nixl-cu12"
        except OSError as error:
            problems.append(f"{folder}: {error}")
    try:
        return ffi.dlopen(SYSTEM_LIBRARY, ffi.RTLD_NOW), SYSTEM_LIBRARY, "system"
    except OSError as error:
        problems.append(str(error))
    raise UcxUnavailable(f"no libucp ({'; '.join(problems)}): {HOW_TO_GET}")


def wheel_folder() -> Path | None:
    """Where the wheel keeps its libraries; looked up without importing the package."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent.parent / f"{WHEEL}.libs"
    return folder if folder.is_dir() else None


def _open_wheel(ffi: Any, folder: Path) -> tuple[Any, str]:
    """The wheel's files have hashed names and must come in this order."""
    for name in NETLINK:
        # Bound to itself before the wheel's copy is there: mixed, they crash when Python ends.
        with suppress(OSError):
            _keep_open(ffi, name, 0)
    if rdma_devices():
        _open_verbs(ffi, folder)
    for name in ("libucs", "libuct"):
        _keep_open(ffi, str(_only(folder, name)), ffi.RTLD_GLOBAL)
    path = str(_only(folder, "libucp"))
    return ffi.dlopen(path, ffi.RTLD_NOW), path


def rdma_devices() -> list[str]:
    """Names of this host's devices as the kernel has them: InfiniBand, RoCE, iWARP, EFA."""
    return sorted(path.name for path in DEVICES.iterdir()) if DEVICES.is_dir() else []


def _open_verbs(ffi: Any, folder: Path) -> None:
    """Give the wheel's own libibverbs the host's providers; mlx5 is in the wheel.

    It looks for others in a place of its own build. A provider registers itself, when it is loaded,
    with the libibverbs that is visible to all.
    """
    _keep_open(ffi, str(_only(folder, "libibverbs")), ffi.RTLD_GLOBAL)
    for provider in sorted(path for pattern in PROVIDERS for path in glob(pattern)):
        if "mlx5" not in provider:
            # One of another release of rdma-core does not load; doctor shows what is not seen.
            with suppress(OSError):
                _keep_open(ffi, provider, 0)


def _keep_open(ffi: Any, path: str, flags: int) -> None:
    """What cffi no longer sees it would unload."""
    _opened.append(ffi.dlopen(path, ffi.RTLD_NOW | flags))


def _only(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}-*.so*"))
    if not found:
        raise OSError(f"it has no {name}")
    return found[0]


@contextmanager
def _load_environment() -> Iterator[None]:
    """What the environment says already wins; children do not inherit ours."""
    added = {name: value for name, value in LOAD_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
