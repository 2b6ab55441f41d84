"""Copies of hot prefixes ahead of need in virtual time: the conductor's own class, acting on pools.

Looks once a second, when requests arrive.
"""

from collections.abc import Callable, Mapping

from shared.kv.block_keys import num_keys, split
from shared.kv.ids import BlockKey
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.replica_targets import targets_of
from shared.scheduling.replication import Copy, HotPrefix, Replication
from shared.simulator.event_loop import EventLoop
from shared.simulator.hardware import Hardware
from shared.simulator.virtual_node import VirtualNode, transfer

ROUND_S = 1.0
WEIGHED_A_ROUND = 16


class VirtualReplication:
    def __init__(
        self,
        table: Replication,
        core: ConductorCore,
        nodes: Mapping[str, VirtualNode],
        incarnation: str,
        hardware: Hardware,
        loop: EventLoop,
        report: Callable[[], None],
    ) -> None:
        self.table = table
        self._core = core
        self._nodes = nodes
        self._incarnation = incarnation
        self._hardware = hardware
        self._loop = loop
        self._report = report
        self._next_s = 0.0
        self.num_copies = 0
        self.moved_bytes = 0

    def look(self) -> None:
        now_s = self._loop.now_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + ROUND_S
        candidates = self.table.candidates(now_s, WEIGHED_A_ROUND)
        if candidates:
            self._report()
        begun: list[HotPrefix] = []
        for hot in candidates:
            if any(hot.is_start_of(one) or one.is_start_of(hot) for one in begun):
                continue
            copy = self._plan(hot)
            if copy is not None:
                begun.append(hot)
                self.table.started(copy, now_s)
                self._begin(copy, split(hot.keys))

    def _plan(self, hot: HotPrefix) -> Copy | None:
        now_s, last = self._loop.now_s, BlockKey(hot.key[1])
        holders = [
            (node.sends.backlog_bytes(now_s), name)
            for name, node in self._nodes.items()
            if node.pool.is_readable(last)
        ]
        pools = {
            (name, self._incarnation): (
                node.pool.counts.free,
                node.receives.backlog_bytes(now_s),
            )
            for name, node in self._nodes.items()
        }
        targets = targets_of(self._core.view, hot.root, pools, self._core.settings.lease_s, now_s)
        cost = self._core.learnt(hot.model).cost
        in_order = [(name, self._incarnation) for _, name in sorted(holders)]
        return self.table.plan(hot, in_order, targets, cost, now_s)

    def _begin(self, copy: Copy, keys: list[BlockKey]) -> None:
        source, target = self._nodes[copy.source[0]], self._nodes[copy.target[0]]
        self.num_copies += 1
        handle = f"copy-{self.num_copies}"
        there = source.hold(handle, keys)
        num_bytes = (there - target.num_leading(keys[:there])) * copy.num_bytes // len(keys)
        self.moved_bytes += max(0, num_bytes)
        base_s = self._hardware.link_base_s
        ends_s = transfer([source], target, max(0, num_bytes), self._loop.now_s, base_s)

        def end() -> None:
            source.release(handle)
            target.store(handle, keys, there)
            target.release(handle)
            is_done = target.num_leading(keys) == num_keys(b"".join(keys))
            self.table.finished(copy, self._loop.now_s, is_done=is_done)

        self._loop.at(ends_s, end)
