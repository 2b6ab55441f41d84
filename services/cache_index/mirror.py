"""The index in memory: what every node holds, in the order its events say. Pure; time is given.

Owns the view, the leases of nodes and the order of events. It never asks Redis or a node: loading
and resync hand their findings in (`begin_fill`, `fill`, `finish_fill`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.cache_index.event_order import EventOrder
from services.cache_index.node_registry import Change, NodeLease, NodeRegistry
from services.cache_index.segments import Replicas
from shared.kv.block_keys import split
from shared.kv.fingerprints import NUM_CLASSES, depth_class
from shared.kv.ids import KEY_BYTES
from shared.kv.replica_sets import HolderId
from shared.kv.residency import ResidencyView
from shared.messages.index import ResidencyEvent, StoredRun, Tier


@dataclass(slots=True)
class _Node:
    incarnation: str
    root: bytes
    holder: HolderId
    order: EventOrder[ResidencyEvent] = field(default_factory=EventOrder)
    has_orphans: bool = False
    fill: "Fill | None" = None

    @property
    def is_behind(self) -> bool:
        return self.has_orphans or self.order.is_behind


@dataclass(frozen=True, slots=True)
class Fill:
    """What a node holds is being read from its inventory or from Redis, beside the live view."""

    node: str
    incarnation: str
    holder: HolderId


@dataclass(frozen=True, slots=True)
class Match:
    node: str
    incarnation: str
    num_blocks: int
    dram_blocks: int


LIFT_BELOW = 0.5
"""So full at most before deep blocks are kept again."""
LIFT_EVERY_S = 600.0


class Mirror:
    def __init__(self, max_bytes: int | None = None) -> None:
        self.registry = NodeRegistry()
        self.view = ResidencyView(max_bytes)
        self._nodes: dict[str, _Node] = {}
        self._node_of: dict[HolderId, str] = {}
        self._lifted_s = float("-inf")
        self.gaps_total = 0
        self.events_total = 0
        self.late_events_total = 0
        self._past_duplicates = 0

    # --- nodes ---------------------------------------------------------------------------------
    def see_node(self, lease: NodeLease, seq: int | None, now_s: float) -> Change:
        """A node was registered or renewed. A new incarnation inherits nothing."""
        change = self.registry.see(lease, now_s)
        if change == "stale":
            return change
        known = self._nodes.get(lease.node)
        is_current = known is not None and (known.incarnation, known.root) == (
            lease.incarnation,
            lease.root,
        )
        if known is None or not is_current:
            self._drop(lease.node)
            holder = self.view.add_holder(lease.root)
            known = _Node(lease.incarnation, lease.root, holder)
            self._nodes[lease.node] = known
            self._node_of[holder] = lease.node
        if seq is not None:
            known.order.hear(seq)
        return change

    def forget_node(self, node: str) -> None:
        self.registry.forget(node)
        self._drop(node)

    def _drop(self, node: str) -> None:
        known = self._nodes.pop(node, None)
        if known is None:
            return
        self._abandon_fill(known)
        self._past_duplicates += known.order.duplicates_total
        del self._node_of[known.holder]
        self.view.drop_holder(known.holder)

    # --- events --------------------------------------------------------------------------------
    def on_event(self, event: ResidencyEvent) -> list[ResidencyEvent]:
        """Apply what is in order; returns the events applied, for the writer of the node."""
        known = self._nodes.get(event.node)
        if known is None or (known.incarnation, known.root) != (event.incarnation, event.root):
            self.late_events_total += 1
            return []
        was_behind = known.is_behind
        self.events_total += 1
        ready = known.order.accept(event.seq, event, num_blocks_in(event))
        for one in ready:
            self._apply(known, one)
        if known.is_behind and not was_behind:
            self.gaps_total += 1
        return ready

    def _apply(self, known: _Node, event: ResidencyEvent) -> None:
        for removed in event.removed:
            self.view.remove(known.holder, removed.keys)
        for run in event.stored:
            if run.start and not self.view.holds(known.holder, run.parent):
                # Its parent got lost here, and the inventory knows; or it is too deep to be kept.
                if depth_class(run.start - 1) < self.view.horizon:
                    known.has_orphans = True
            else:
                self._store(known.holder, run)

    def _store(self, holder: HolderId, run: StoredRun) -> None:
        self.view.store(holder, run.keys, run.start, on_disk=run.tier == "disk")

    def is_behind(self, node: str) -> bool:
        """An event of the node is missing, or did not fit: its inventory must be taken."""
        known = self._nodes.get(node)
        return known is not None and known.is_behind

    # --- filling from Redis or an inventory ----------------------------------------------------
    def begin_fill(self, node: str) -> Fill | None:
        """Collect what the node holds anew; events that come meanwhile are kept. One at a time."""
        known = self._nodes.get(node)
        if known is None or known.fill is not None:
            return None
        known.order.begin_recording()
        known.fill = Fill(node, known.incarnation, self.view.add_holder(known.root))
        return known.fill

    def fill_runs(self, fill: Fill, runs: Iterable[StoredRun]) -> bool:
        """False: the fill is void, the node has another incarnation or is gone."""
        if not self._is_open(fill):
            return False
        for run in runs:
            self._store(fill.holder, run)
        return True

    def fill_replicas(self, fill: Fill, found: Replicas) -> bool:
        """From Redis, in any order; all of one tier at a time."""
        if not self._is_open(fill):
            return False
        for on_disk in (False, True):
            chosen = found.is_on_disk == on_disk
            if chosen.any():
                self.view.store_prints(
                    fill.holder,
                    found.prints[chosen],
                    found.classes[chosen],
                    on_disk=on_disk,
                )
        return True

    def finish_fill(self, fill: Fill, seq: int) -> list[ResidencyEvent] | None:
        """The fill was true at `seq` and takes the place of the old view of the node.

        Returns the events applied on top; None when it was void or too much came meanwhile.
        """
        if not self._is_open(fill):
            return None
        known = self._nodes[fill.node]
        known.fill = None
        ready = known.order.restart_at(seq)
        if ready is None:
            self.view.drop_holder(fill.holder)
            return None
        del self._node_of[known.holder]
        self.view.drop_holder(known.holder)
        known.holder = fill.holder
        known.has_orphans = False
        self._node_of[fill.holder] = fill.node
        for event in ready:
            self._apply(known, event)
        return ready

    def abandon_fill(self, fill: Fill) -> None:
        if self._is_open(fill):
            self._abandon_fill(self._nodes[fill.node])

    def _abandon_fill(self, known: _Node) -> None:
        if known.fill is not None:
            self.view.drop_holder(known.fill.holder)
            known.order.stop_recording()
            known.fill = None

    def _is_open(self, fill: Fill) -> bool:
        known = self._nodes.get(fill.node)
        return known is not None and known.fill is fill

    # --- matching ------------------------------------------------------------------------------
    def match(self, root: bytes, chain: bytes, now_s: float) -> list[Match]:
        """Live nodes that hold the start of the chain, the longest first, then by name."""
        found = []
        for depth in self.view.match(root, chain):
            node = self._node_of.get(depth.holder)
            entry = None if node is None else self.registry.get(node)
            if node is not None and entry is not None and entry.is_live(now_s):
                found.append(
                    Match(
                        node,
                        self._nodes[node].incarnation,
                        depth.num_blocks,
                        depth.memory_blocks,
                    )
                )
        found.sort(key=lambda match: (-match.num_blocks, match.node))
        return found

    def holders_of(self, root: bytes, key: bytes, now_s: float) -> list[tuple[str, str, Tier]]:
        """(node, incarnation, tier) of every live node that has this block, by name."""
        found: list[tuple[str, str, Tier]] = []
        for holder, is_on_disk in self.view.holders_of(root, key):
            node = self._node_of.get(holder)
            entry = None if node is None else self.registry.get(node)
            if node is not None and entry is not None and entry.is_live(now_s):
                tier: Tier = "disk" if is_on_disk else "dram"
                found.append((node, self._nodes[node].incarnation, tier))
        return sorted(found)

    def num_copies(self, root: bytes, keys: bytes, node: str, now_s: float) -> bytes:
        """For each key: live nodes but this one that have it, at most 255."""
        counts = bytearray()
        for key in split(keys):
            holders = self.holders_of(root, key, now_s)
            counts.append(min(255, sum(1 for name, _, _ in holders if name != node)))
        return bytes(counts)

    # --- the budget ----------------------------------------------------------------------------
    def lift_horizon(self, now_s: float) -> list[str]:
        """When there is room again for what was let go: keep all again. Returns the nodes whose
        inventory is wanted for it."""
        is_low = self.view.horizon < NUM_CLASSES and self.view.fill < LIFT_BELOW
        if not is_low or now_s < self._lifted_s + LIFT_EVERY_S:
            return []
        self._lifted_s = now_s
        self.view.lift_horizon()
        return sorted(self._nodes)

    # --- what it has, for others to compare ----------------------------------------------------
    def nodes(self) -> list[tuple[str, str, HolderId, int]]:
        """(node, incarnation, holder, last event applied), by name."""
        return [
            (name, known.incarnation, known.holder, known.order.last_seq)
            for name, known in sorted(self._nodes.items())
        ]

    @property
    def duplicates_total(self) -> int:
        return self._past_duplicates + sum(
            known.order.duplicates_total for known in self._nodes.values()
        )

    def blocks_by_node(self) -> dict[str, int]:
        return {
            name: self.view.num_blocks(known.holder) for name, known in sorted(self._nodes.items())
        }

    def check_integrity(self) -> None:
        self.view.check_integrity()
        holders = {known.holder: name for name, known in self._nodes.items()}
        assert holders == self._node_of, "holders and nodes differ"


def num_blocks_in(event: ResidencyEvent) -> int:
    stored = sum(len(run.keys) for run in event.stored)
    return (stored + sum(len(run.keys) for run in event.removed)) // KEY_BYTES
