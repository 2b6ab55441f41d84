"""Whatever happens to a node's events on the way, the mirror ends in the truth."""

import random
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from services.cache_index.mirror import Fill, Mirror
from services.cache_index.node_registry import NodeLease
from shared.messages.index import ResidencyEvent
from shared.runtime.bus import Bus
from tests.support.fake_node import FakeNode

ROOT = b"r" * 16
NUM_BLOCKS = 100
CHAINS = [random.Random(seed).randbytes(16 * NUM_BLOCKS) for seed in range(3)]


class LossyNode:
    """A node whose events are delayed, overtaken, repeated and lost, and a mirror that hears it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.mirror = Mirror()
        self.node = FakeNode(cast(Bus, None), "n", ROOT)
        self.registration = 0
        self.on_the_way: list[ResidencyEvent] = []
        self.fill: Fill | None = None
        self.cursor: int | None = 0
        self.first_seq: int | None = None
        self.register(None)

    def register(self, seq: int | None) -> None:
        lease = NodeLease("n", self.node.incarnation, ROOT, self.registration, "e", 1e9)
        self.mirror.see_node(lease, seq, 0.0)

    def store(self) -> None:
        chain, count = self.rng.choice(CHAINS), self.rng.randint(1, 40)
        start = self.node.depths.get(chain, 0)
        if start + count <= NUM_BLOCKS:
            self.on_the_way.append(self.node.store_event(chain, start, start + count))

    def remove(self) -> None:
        chain = self.rng.choice(CHAINS)
        if self.node.depths.get(chain):
            kept = self.rng.randrange(self.node.depths[chain])
            self.on_the_way.append(self.node.remove_event(chain, kept))

    def deliver(self) -> None:
        if self.on_the_way:
            event = self.rng.choice(self.on_the_way[:3])
            if self.rng.random() < 0.8:
                self.on_the_way.remove(event)
            self.mirror.on_event(event)

    def lose(self) -> None:
        if self.on_the_way:
            self.on_the_way.remove(self.rng.choice(self.on_the_way[:3]))

    def go_on_with_inventory(self) -> None:
        if self.fill is None:
            self.fill, self.cursor, self.first_seq = self.mirror.begin_fill("n"), 0, None
            return
        assert self.cursor is not None
        page = self.node.page(self.cursor)
        self.first_seq = page.seq if self.first_seq is None else self.first_seq
        self.mirror.fill_runs(self.fill, page.stored)
        self.cursor = page.next_cursor
        if self.cursor is None:
            self.mirror.finish_fill(self.fill, self.first_seq)
            self.fill = None

    def restart(self) -> None:
        """Another incarnation; events of the old one stay on the way."""
        self.registration += 1
        self.node.incarnation, self.node.seq = f"life-{self.registration}", 0
        self.node.depths.clear()
        self.fill = None
        self.register(None)
        assert all(self.mirror.match(ROOT, chain, 0.0) == [] for chain in CHAINS)

    def settle(self) -> None:
        """All that is on the way arrives, the node says its sequence, gaps are made good."""
        for event in self.on_the_way:
            self.mirror.on_event(event)
        self.on_the_way.clear()
        self.register(self.node.seq)
        while self.fill is not None:
            self.go_on_with_inventory()
        if self.mirror.is_behind("n"):
            self.go_on_with_inventory()
            while self.fill is not None:
                self.go_on_with_inventory()
        assert not self.mirror.is_behind("n")
        for chain in CHAINS:
            found = {m.node: m.num_blocks for m in self.mirror.match(ROOT, chain, 0.0)}
            depth = self.node.depths.get(chain, 0)
            assert found == ({"n": depth} if depth else {})


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_mirror_of_lossy_events_settles_on_the_truth(seed: int) -> None:
    rng = random.Random(seed)
    lossy = LossyNode(rng)
    steps = [lossy.store, lossy.remove, lossy.deliver, lossy.lose, lossy.go_on_with_inventory]
    weights = [6, 3, 8, rng.choice([0, 1, 2]), rng.choice([0, 2, 4])]
    for _ in range(4):
        for step in rng.choices(steps, weights, k=rng.randint(5, 40)):
            step()
        lossy.mirror.check_integrity()
        lossy.settle()
        lossy.mirror.check_integrity()
        if rng.random() < 0.2:
            lossy.store()
            lossy.restart()
