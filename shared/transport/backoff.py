"""When something that failed is tried again. Pure: time comes in."""

FIRST_S = 0.5
LONGEST_S = 30.0


class Backoff:
    """Doubles with each failure in a row; one success forgets them."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.num_failures = 0
        self.until_s = 0.0

    def failed(self, now_s: float) -> None:
        pause_s = min(self._first_s * 2.0**self.num_failures, self._longest_s)
        self.num_failures = min(self.num_failures + 1, 32)
        self.until_s = now_s + pause_s

    def worked(self) -> None:
        self.num_failures = 0
        self.until_s = 0.0

    def is_over(self, now_s: float) -> bool:
        return now_s >= self.until_s
