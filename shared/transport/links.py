"""Which of several links to a peer takes the next bytes. Pure: time comes in, nothing is moved.

The one that is predicted to be done first, from what it has in flight and how fast it was of late.
Links that are far from the memory cost more. One that failed, or that was too slow, is left and
tried again with little after a pause that grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.transport.backoff import Backoff

FIRST_GUESS_BYTES_PER_S = 1e9
NEW_SHARE = 0.3
"""Of the newest measurement in a link's bandwidth."""
SECONDARY_COST = 2.0
PROBE_AFTER_S = 5.0
"""A link that is never the best is tried after so long: it may have become better."""


@dataclass(slots=True)
class _Link:
    is_preferred: bool
    bytes_per_s: float = FIRST_GUESS_BYTES_PER_S
    in_flight_bytes: int = 0
    num_in_flight: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    is_proven: bool = True
    """False after a failure, until something came through: it gets one piece at a time."""
    is_reached: bool = False
    """The peer was there over it, and has not been lost since."""
    busy_until_s: float = 0.0
    """When its last piece was done."""
    used_s: float = 0.0


class LinkSet:
    """The links between this node and one peer."""

    def __init__(self, preferred: Sequence[str], secondary: Sequence[str] = ()) -> None:
        self._links = {name: _Link(True) for name in preferred}
        self._links |= {name: _Link(False) for name in secondary}

    @property
    def names(self) -> list[str]:
        return list(self._links)

    @property
    def num_reached(self) -> int:
        """Links over which the peer was there and is not known to be gone."""
        return sum(link.is_reached for link in self._links.values())

    def reached(self, name: str) -> None:
        self._links[name].is_reached = True

    def lost(self, name: str, now_s: float) -> None:
        """The peer is gone over this link; what runs over it fails by itself."""
        link = self._links[name]
        link.is_reached = link.is_proven = False
        if not link.num_in_flight:
            link.backoff.failed(now_s)

    def bytes_per_s(self, name: str) -> float:
        return self._links[name].bytes_per_s

    def in_flight_bytes(self, name: str) -> int:
        return self._links[name].in_flight_bytes

    def is_usable(self, name: str, now_s: float) -> bool:
        """Whether it may be given something now."""
        link = self._links[name]
        return link.backoff.is_over(now_s) and (link.is_proven or not link.num_in_flight)

    def predicted_s(self, name: str, num_bytes: int) -> float:
        """How long until these bytes are there, when they are given to it now."""
        link = self._links[name]
        return (link.in_flight_bytes + num_bytes) / link.bytes_per_s

    def choose(
        self, num_bytes: int, now_s: float, *, but: frozenset[str] = frozenset()
    ) -> str | None:
        """None when no link may be given something now."""
        usable = [name for name in self._links if name not in but and self.is_usable(name, now_s)]
        if not usable:
            return None
        forgotten = [name for name in usable if self._is_forgotten(name, now_s)]
        if forgotten:
            return min(forgotten, key=lambda name: self._links[name].used_s)
        return min(usable, key=lambda name: self._cost_s(name, num_bytes))

    def _is_forgotten(self, name: str, now_s: float) -> bool:
        link = self._links[name]
        return not link.num_in_flight and now_s - link.used_s > PROBE_AFTER_S

    def started(self, name: str, num_bytes: int, now_s: float) -> None:
        link = self._links[name]
        link.in_flight_bytes += num_bytes
        link.num_in_flight += 1
        link.used_s = now_s

    def finished(self, name: str, num_bytes: int, started_s: float, now_s: float) -> None:
        """It is all there: the link's speed is known better, and its failures are forgotten."""
        link = self._links[name]
        took_s = max(now_s - max(started_s, link.busy_until_s), 1e-6)
        link.bytes_per_s += NEW_SHARE * (num_bytes / took_s - link.bytes_per_s)
        link.busy_until_s = now_s
        link.is_proven = link.is_reached = True
        link.backoff.worked()
        self._ended(link, num_bytes)

    def failed(self, name: str, num_bytes: int, now_s: float) -> None:
        """It is broken or far slower than predicted: what it had must go over another."""
        link = self._links[name]
        link.is_proven = False
        link.backoff.failed(now_s)
        self._ended(link, num_bytes)

    def given_up(self, name: str, num_bytes: int) -> None:
        """Nobody wants the bytes any more; says nothing about the link."""
        self._ended(self._links[name], num_bytes)

    def _ended(self, link: _Link, num_bytes: int) -> None:
        link.in_flight_bytes -= num_bytes
        link.num_in_flight -= 1

    def _cost_s(self, name: str, num_bytes: int) -> float:
        factor = 1.0 if self._links[name].is_preferred else SECONDARY_COST
        return factor * self.predicted_s(name, num_bytes)
