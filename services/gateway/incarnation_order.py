"""In which order the incarnations of a process appeared, as this gateway saw it. Pure."""

from collections import OrderedDict

MAX_PROCESSES = 4_096
MAX_INCARNATIONS = 8


class IncarnationOrder:
    """Incarnations are random names: only when they were first seen tells old from new."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], list[str]] = OrderedDict()

    def note(self, service: str, process: str, incarnation: str) -> None:
        """It was seen: the newest one, when it was not seen before."""
        known = self._seen.setdefault((service, process), [])
        self._seen.move_to_end((service, process))
        if incarnation not in known:
            known.append(incarnation)
            del known[:-MAX_INCARNATIONS]
        while len(self._seen) > MAX_PROCESSES:
            self._seen.popitem(last=False)

    def is_older(self, service: str, process: str, incarnation: str, than: str) -> bool:
        """Whether it is known to be older; not when one of the two was never seen."""
        known = self._seen.get((service, process), [])
        if incarnation not in known or than not in known:
            return False
        return known.index(incarnation) < known.index(than)
