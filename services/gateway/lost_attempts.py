"""Attempts that may run somewhere although nobody told us where; said in our reports. Pure."""

from collections import OrderedDict

KEEP_S = 5.0
"""Several reports, and a question that was held up on its way."""
MAX_ATTEMPTS = 256
"""The latest: those that are not named end when they have nobody to hand over to."""


class LostAttempts:
    """Owns the handles of attempts whose placement was asked for and not heard of."""

    def __init__(self) -> None:
        self._since_s: OrderedDict[str, float] = OrderedDict()

    def note(self, handle: str, now_s: float) -> None:
        self._since_s[handle] = now_s
        while len(self._since_s) > MAX_ATTEMPTS:
            self._since_s.popitem(last=False)

    def current(self, now_s: float) -> list[str]:
        """Those of late, the oldest first; forgets the others."""
        while self._since_s:
            handle, since_s = next(iter(self._since_s.items()))
            if now_s - since_s < KEEP_S:
                break
            del self._since_s[handle]
        return list(self._since_s)
