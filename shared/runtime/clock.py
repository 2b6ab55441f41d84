"""The one clock of live services: monotonic seconds. Time of day decides nothing."""

import time


def monotonic_s() -> float:
    """Seconds that only grow, whatever happens to the clock on the wall."""
    return time.monotonic()
