"""Copies runs of bytes between mapped memory, hashing on the way: native, or numpy without gcc.

Works on addresses: whoever calls keeps the memory mapped until the call has returned.
"""

import ctypes
import hashlib
import importlib
import logging
import shutil
import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from shared.native.build import built

PIECE_BYTES = 256 << 10
"""Hashed while it is in the core's cache; between two pieces a copy looks whether it shall stop."""
AROUND_CACHE_BYTES = 4 << 20
"""From this size on a copy is not kept in the cache: it would push out what is used there."""
MIN_RUN_AROUND_CACHE_BYTES = 64 << 10

RUN = np.dtype(
    [(name, np.uint64) for name in ("to", "from", "bytes", "generation", "generation_at", "digest")]
)
Runs = npt.NDArray[np.void]
"""Records of RUN: addresses and sizes; the number at `generation_at` (0: none) must be `generation`
before and after; `digest` is filled in."""

_SOURCE = Path(__file__).with_name("native_copy.c")
_FLAGS = ("-O3", "-fvisibility=hidden", "-shared", "-fPIC")

log = logging.getLogger("moonpool.transport")


class Copier(Protocol):
    """Copies in the thread that calls, without the GIL."""

    name: str

    def copy(self, runs: Runs, stop: "Stop", *, with_digests: bool) -> int:
        """How many leading runs are whole and were one use of their source all the time."""


class Stop:
    """Seen by a copy between two pieces."""

    def __init__(self) -> None:
        self.flag = ctypes.c_int32(0)

    def set(self) -> None:
        self.flag.value = 1

    def is_set(self) -> bool:
        return bool(self.flag.value)


def load_copier(cache_dir: Path) -> Copier:
    """The native one where gcc builds it and it proves right, else numpy's. Takes up to 1 s."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        log.warning("no C compiler here: KV is copied by numpy, which is slower (install gcc)")
        return PlainCopier()
    library = built(
        "copy",
        [compiler, *_FLAGS],
        (_SOURCE,),
        cache_dir / "native",
        instead="KV is copied by numpy, which is slower",
    )
    try:
        native = None if library is None else NativeCopier(library)
    except (OSError, AttributeError) as error:
        log.warning("the native copy cannot be loaded (%s); numpy's is used", error)
        return PlainCopier()
    return native if native is not None and is_right(native) else PlainCopier()


class PlainCopier:
    """numpy and xxhash; both give up the GIL for pieces of this size."""

    name = "numpy"

    def copy(self, runs: Runs, stop: Stop, *, with_digests: bool) -> int:
        for done, run in enumerate(runs):
            if not _holds(run):
                return done
            source = _bytes_at(int(run["from"]), int(run["bytes"]))
            target = _bytes_at(int(run["to"]), int(run["bytes"]))
            state = xxhash.xxh3_64()
            for at in range(0, len(source), PIECE_BYTES):
                if stop.is_set():
                    return done
                piece = target[at : at + PIECE_BYTES]
                np.copyto(piece, source[at : at + PIECE_BYTES])
                if with_digests:
                    state.update(piece.data)
            if not _holds(run):
                return done
            run["digest"] = state.intdigest()
        return len(runs)


class _Hash(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("reset", "update", "digest", "state")]


class NativeCopier:
    """native_copy.c. The hash is the one inside the xxhash package, called from C."""

    name = "native"

    def __init__(self, library: Path) -> None:
        """AttributeError when the xxhash package does not show its functions."""
        self._copy: Any = ctypes.CDLL(str(library)).moonpool_copy
        self._copy.restype = ctypes.c_int64
        self._copy.argtypes = [
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p,
            ctypes.c_void_p,
        ]  # fmt: skip
        self._xxhash = ctypes.CDLL(importlib.import_module("xxhash._xxhash").__file__)
        self._xxhash.XXH3_createState.restype = ctypes.c_void_p
        self._xxhash.XXH3_createState.argtypes = []
        self._functions = {
            "reset": self._address("XXH3_64bits_reset"),
            "update": self._address("XXH3_64bits_update_dispatch", "XXH3_64bits_update"),
            "digest": self._address("XXH3_64bits_digest"),
        }
        self._of_thread = threading.local()

    def copy(self, runs: Runs, stop: Stop, *, with_digests: bool) -> int:
        if not len(runs):
            return 0
        sizes = runs["bytes"]
        around_cache = (
            int(sizes.sum()) >= AROUND_CACHE_BYTES
            and int(sizes.max()) >= MIN_RUN_AROUND_CACHE_BYTES
        )
        done = self._copy(
            runs.ctypes.data,
            len(runs),
            PIECE_BYTES,
            around_cache,
            ctypes.addressof(self._hash()) if with_digests else None,
            ctypes.addressof(stop.flag),
        )
        return int(done)

    def _hash(self) -> _Hash:
        """Each thread has a state of its own, made once."""
        found: _Hash | None = getattr(self._of_thread, "hash", None)
        if found is None:
            found = _Hash(**self._functions, state=self._xxhash.XXH3_createState())
            if not found.state:
                raise MemoryError("no memory for a hash state")
            self._of_thread.hash = found
        return found

    def _address(self, *names: str) -> int | None:
        """Of the first of these functions that there is; the last must be."""
        for name in names[:-1]:
            if hasattr(self._xxhash, name):
                return ctypes.cast(getattr(self._xxhash, name), ctypes.c_void_p).value
        return ctypes.cast(getattr(self._xxhash, names[-1]), ctypes.c_void_p).value


def is_right(copier: Copier) -> bool:
    """Whether bytes and digests are those of numpy and xxhash, for sizes around every edge."""
    noise = np.frombuffer(hashlib.shake_128(b"copy").digest(AROUND_CACHE_BYTES + 400_000), np.uint8)
    for num_bytes, shift in ((1, 3), (240, 0), (4_097, 1), (300_001, 7), (AROUND_CACHE_BYTES, 64)):
        source = noise[shift : shift + num_bytes]
        target = np.zeros(num_bytes + 2, dtype=np.uint8)
        runs = np.zeros(1, dtype=RUN)
        runs[0] = (target.ctypes.data + 1, source.ctypes.data, num_bytes, 0, 0, 0)
        done = copier.copy(runs, Stop(), with_digests=True)
        whole = np.array_equal(target[1:-1], source) and not target[0] and not target[-1]
        if (
            done != 1
            or not whole
            or int(runs[0]["digest"]) != xxhash.xxh3_64_intdigest(source.data)
        ):
            log.warning("the %s copy is wrong for %d bytes on this machine", copier.name, num_bytes)
            return False
    return True


def _bytes_at(address: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


def _holds(run: np.void) -> bool:
    at = int(run["generation_at"])
    return not at or ctypes.c_uint64.from_address(at).value == int(run["generation"])
