"""Nodes with their tiers, links with their traffic, instances with their load. Pure."""

from collections import deque
from typing import Any

from shared.messages.reports import InstanceReport, NodeReport
from shared.overview.members import Members, state_of

RATE_WINDOW_S = 5.0
MAX_SAMPLES = 16
COUNTERS = ("bytes_fetched_total", "bytes_streamed_total", "ssd_bytes_read_total",
            "ssd_bytes_written_total", "evictions_total")  # fmt: skip


class Rates:
    """How fast the counters of each node grow, from its reports of the last seconds."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, NodeReport]]] = {}

    def hear(self, report: NodeReport, now_s: float) -> None:
        samples = self._samples.setdefault(report.id, deque(maxlen=MAX_SAMPLES))
        if samples and samples[-1][1].incarnation != report.incarnation:
            samples.clear()
        samples.append((now_s, report))

    def keep_only(self, nodes: set[str]) -> None:
        self._samples = {node: found for node, found in self._samples.items() if node in nodes}

    def of(self, node: str, now_s: float) -> dict[str, float]:
        """By counter, a second."""
        ends = self._ends(node, now_s)
        if ends is None:
            return dict.fromkeys(COUNTERS, 0.0)
        first, last, span_s = ends
        return {
            name: round((getattr(last, name) - getattr(first, name)) / span_s, 1)
            for name in COUNTERS
        }

    def from_peers(self, node: str, now_s: float) -> dict[str, float]:
        """Bytes a second that came to this node, by peer."""
        ends = self._ends(node, now_s)
        if ends is None:
            return {}
        first, last, span_s = ends
        before = first.bytes_moved_by_peer
        return {
            peer: round((total - before.get(peer, 0)) / span_s, 1)
            for peer, total in last.bytes_moved_by_peer.items()
        }

    def _ends(self, node: str, now_s: float) -> tuple[NodeReport, NodeReport, float] | None:
        recent = [one for one in self._samples.get(node, ()) if now_s - one[0] <= RATE_WINDOW_S]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return None
        return recent[0][1], recent[-1][1], recent[-1][0] - recent[0][0]


def nodes_of(members: Members, rates: Rates, now_s: float) -> list[dict[str, Any]]:
    return [
        {
            "id": node.id,
            "state": state_of(node, heard_s, now_s),
            "block_bytes": node.block_bytes,
            "dram": {
                "total": node.slots_total,
                "free": node.slots_free,
                "writing": node.slots_writing,
                "private": node.slots_private,
                "sealed": node.slots_sealed,
                "leased": node.slots_leased,
                "pinned": node.pinned_blocks,
                "low": node.slots_low,
                "high": node.slots_high,
            },
            "ssd": {
                "state": node.ssd_state,
                "total": node.ssd_slots_total,
                "used": node.ssd_blocks,
                "errors": node.ssd_errors_total + node.ssd_bad_blocks_total,
            },
            "rates": rates.of(node.id, now_s),
            "bytes_in_flight": node.bytes_in_flight,
            "evictions_total": node.evictions_total,
            "checksum_failures_total": node.checksum_failures_total,
            "transports": node.transports,
            "attached": node.attached,
        }
        for node, heard_s in members.reports(NodeReport)
    ]


def links_of(members: Members, rates: Rates, now_s: float) -> list[dict[str, Any]]:
    """Pairs of nodes between which bytes have moved, or that could not reach one another."""
    states = {
        node.id: state_of(node, heard_s, now_s) for node, heard_s in members.reports(NodeReport)
    }
    found = []
    for node, _ in members.reports(NodeReport):
        per_s = rates.from_peers(node.id, now_s)
        peers = {*node.bytes_moved_by_peer, *node.bytes_in_flight_by_peer, *node.resting_transports}
        for peer in sorted(peers - {node.id}):
            resting = node.resting_transports.get(peer, [])
            found.append(
                {
                    "from": peer,
                    "to": node.id,
                    "health": _health(states.get(peer, "gone"), states[node.id], resting),
                    "resting": resting,
                    "moved_bytes": node.bytes_moved_by_peer.get(peer, 0),
                    "bytes_per_s": per_s.get(peer, 0.0),
                    "in_flight_bytes": node.bytes_in_flight_by_peer.get(peer, 0),
                }
            )
    return found


def instances_of(members: Members, now_s: float) -> list[dict[str, Any]]:
    return [
        {
            "id": one.id,
            "role": one.service,
            "node": one.node,
            "state": state_of(one, heard_s, now_s),
            "model": one.model,
            "queued_requests": one.queued_requests,
            "queued_tokens": one.queued_tokens,
            "running": one.running,
            "starts_in_s": round(one.expected_start_s, 3),
            "discipline": one.discipline,
            "free_tokens": one.free_tokens,
            "capacity_tokens": one.capacity_tokens,
            "batch_tokens": one.context_in_batch_tokens,
            "preempted": one.preempted,
            "preemptions_total": one.preemptions_total,
        }
        for one, heard_s in members.reports(InstanceReport)
    ]


def _health(sender: str, receiver: str, resting: list[str]) -> str:
    if "gone" in (sender, receiver):
        return "a node is gone"
    return "resting: " + ", ".join(resting) if resting else "good"
