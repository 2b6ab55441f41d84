"""PURE: which peers (gateways, prefill instances) have fallen silent.

Silence counts only while the bus itself is heard: a stopped NATS server silences everybody, and
that is no reason to drop their work.
"""

from dataclasses import dataclass

from shared.messages.reports import IDLE_REPORT_INTERVAL_S

BUS_SILENCE_S = 1.5
"""Three missed echoes of our own report: the bus is silent, not the peer."""
REPLACED_SILENCE_S = 2 * IDLE_REPORT_INTERVAL_S
"""A peer whose successor reports is gone this soon; a late report of an older one ends nobody."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One incarnation of a process."""

    service: str
    id: str
    incarnation: str


class PeerWatch:
    """Owns when each watched peer was heard last."""

    def __init__(self, lease_s: float, now_s: float) -> None:
        self._lease_s = lease_s
        self._heard_s: dict[Peer, float] = {}
        self._watchers: dict[Peer, int] = {}
        self._replaced: set[Peer] = set()
        self._echo_s = now_s

    def __len__(self) -> int:
        return len(self._watchers)

    def watch(self, peer: Peer, now_s: float) -> None:
        """Its time starts now, whether it was heard before or not."""
        self._watchers[peer] = self._watchers.get(peer, 0) + 1
        self._heard_s[peer] = now_s

    def unwatch(self, peer: Peer) -> None:
        """Ends one `watch`; the last one forgets the peer."""
        count = self._watchers.get(peer, 0) - 1
        if count > 0:
            self._watchers[peer] = count
            return
        self._watchers.pop(peer, None)
        self._heard_s.pop(peer, None)
        self._replaced.discard(peer)

    def heard(self, peer: Peer, now_s: float) -> None:
        """A report came. Other incarnations of the same process are gone."""
        if peer in self._heard_s:
            self._heard_s[peer] = now_s
            self._replaced.discard(peer)
        for other in self._watchers:
            is_same_process = (other.service, other.id) == (peer.service, peer.id)
            if is_same_process and other.incarnation != peer.incarnation:
                self._replaced.add(other)

    def echoed(self, now_s: float) -> None:
        """Our own report came back: the bus works."""
        self._echo_s = now_s

    def gone(self, now_s: float) -> list[Peer]:
        """Watched peers that were replaced or silent for longer than the lease."""
        if now_s - self._echo_s > BUS_SILENCE_S:
            for peer in self._heard_s:
                self._heard_s[peer] = now_s  # a whole lease once the bus is back
        return [
            peer
            for peer, heard_s in self._heard_s.items()
            if now_s - heard_s > (REPLACED_SILENCE_S if peer in self._replaced else self._lease_s)
        ]
