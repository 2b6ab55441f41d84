"""Replication under any order of misses, answers and time: bounded, within budget, and it ends."""

import random

import hypothesis.strategies as st
from hypothesis import given, settings

from shared.kv.ids import KEY_BYTES
from shared.scheduling.cost_model import CostModel, CostProfile
from shared.scheduling.replication import (
    Copy,
    Miss,
    Replication,
    ReplicationSettings,
    TargetNode,
)

BLOCK_BYTES = 1 << 20
COST = CostModel(CostProfile(transfer_bytes_per_s=1e9))
CHAINS = [random.Random(number).randbytes(24 * KEY_BYTES) for number in range(4)]
BUDGET = 16e6
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["miss", "miss", "miss", "act", "act", "end", "fail", "wait"]),
        st.integers(0, 3),
        st.integers(1, 24),
        st.floats(0.0, 3.0),
    ),
    max_size=120,
)


class Nodes:
    """Who has what, what is on its way and what was moved."""

    def __init__(self, num_nodes: int) -> None:
        self.table = Replication(ReplicationSettings(budget_bytes_per_s=BUDGET, max_prefixes=6))
        self.names = [f"n{number}" for number in range(num_nodes)]
        self.has: dict[tuple[bytes, bytes], set[str]] = {}
        self.running: list[Copy] = []
        self.moved: dict[str, list[tuple[float, int]]] = {name: [] for name in self.names}
        self.now_s = 0.0

    def miss(self, which: int, length: int, paid_s: float) -> None:
        chain = CHAINS[which][: length * KEY_BYTES]
        miss = Miss("m", b"r", chain, length // 3, BLOCK_BYTES, paid_s)
        self.table.observe(miss, self.now_s)

    def act(self, which: int, free_blocks: int, wait_s: float) -> None:
        first = self.names[which % len(self.names)]
        targets = [TargetNode(name, "1", wait_s, free_blocks) for name in self.names]
        for hot in self.table.candidates(self.now_s, 4):
            holders = self.has.setdefault(hot.key, {first})
            in_order = [(name, "1") for name in sorted(holders)]
            copy = self.table.plan(hot, in_order, targets, COST, self.now_s)
            if copy is not None:
                self.begin(copy, holders)

    def begin(self, copy: Copy, holders: set[str]) -> None:
        on_way = {one.target[0] for one in self.running if one.prefix == copy.prefix}
        assert copy.target[0] not in holders | on_way
        assert len(holders | on_way) < len(self.names)
        assert copy.source[0] in holders
        assert copy.saving_s > copy.cost_s >= 0
        self.table.started(copy, self.now_s)
        self.running.append(copy)
        for node, _ in (copy.source, copy.target):
            self.moved[node].append((self.now_s, copy.num_bytes))

    def end(self, which: int, *, is_done: bool) -> None:
        if self.running:
            copy = self.running.pop(which % len(self.running))
            if is_done:
                self.has[copy.prefix].add(copy.target[0])
            self.table.finished(copy, self.now_s, is_done=is_done)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 6))
def test_replicas_stay_within_nodes_and_budget_and_nothing_is_copied_twice(
    steps: list[tuple[str, int, int, float]], num_nodes: int
) -> None:
    nodes = Nodes(num_nodes)
    for action, which, length, amount in steps:
        if action == "miss":
            nodes.miss(which, length, amount)
        elif action == "act":
            nodes.act(which, length, amount)
        elif action == "wait":
            nodes.now_s += amount
        else:
            nodes.end(which, is_done=action == "end")
        nodes.table.check_integrity()
    for copies in nodes.moved.values():
        for first, (began_s, _) in enumerate(copies):
            for last in range(first, len(copies)):
                earlier = sum(num_bytes for _, num_bytes in copies[first:last])
                assert earlier <= BUDGET * (copies[last][0] - began_s) + 1.0
    later_s = nodes.now_s + 3_600.0
    assert nodes.table.candidates(later_s, 8) == []
    assert len(nodes.table) == 0
