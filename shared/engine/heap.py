"""How this process keeps memory that a pass gave back."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_LARGE_BYTES = 8 << 20


def keep_freed_memory() -> None:
    """Results of a layer are used again by the next one instead of going back to the system.

    They are megabytes each, and a page that is given back has to be zeroed before its next use:
    3 to 4 % of a prefill on a small model. Larger pieces still go back. For glibc; elsewhere it
    does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
