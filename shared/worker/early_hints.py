"""PURE: hints about requests whose run has not come yet. Few, and for a short time."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_REQUESTS = 64
MAX_PER_REQUEST = 256
KEEP_S = 2.0


class EarlyHints(Generic[T]):
    """Losing one costs time and nothing else."""

    def __init__(self) -> None:
        self._by_handle: OrderedDict[str, tuple[float, list[T]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_handle)

    def keep(self, handle: str, hint: T, now_s: float) -> None:
        _, hints = self._by_handle.setdefault(handle, (now_s, []))
        if len(hints) < MAX_PER_REQUEST:
            hints.append(hint)
        while len(self._by_handle) > MAX_REQUESTS:
            self._by_handle.popitem(last=False)

    def take(self, handle: str) -> list[T]:
        _, hints = self._by_handle.pop(handle, (0.0, []))
        return hints

    def expire(self, now_s: float) -> None:
        while self._by_handle:
            handle, (since_s, _) = next(iter(self._by_handle.items()))
            if now_s - since_s < KEEP_S:
                return
            del self._by_handle[handle]
