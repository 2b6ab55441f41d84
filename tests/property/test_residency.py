"""ResidencyView against a model that walks every chain, on trees of chains with random changes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.kv.residency import HolderId, ResidencyView

ROOTS = (b"root-one", b"root-two")


def key(root: int, path: tuple[int, ...]) -> bytes:
    """A key per path in the tree of chains; the first 8 bytes differ for all of them."""
    return bytes([root, len(path), *path]).ljust(16, b"\0")


def chain(root: int, path: tuple[int, ...]) -> bytes:
    return b"".join(key(root, path[: end + 1]) for end in range(len(path)))


PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)


class ViewAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.view = ResidencyView()
        self.model: dict[HolderId, tuple[int, set[bytes]]] = {}

    @rule(root=st.integers(0, 1))
    @precondition(lambda self: len(self.model) < 5)
    def add_holder(self, root: int) -> None:
        holder = self.view.add_holder(ROOTS[root])
        assert holder not in self.model
        self.model[holder] = (root, set())

    @rule(data=st.data(), path=PATHS)
    @precondition(lambda self: self.model)
    def store_a_chain(self, data: st.DataObject, path: tuple[int, ...]) -> None:
        holder = data.draw(st.sampled_from(sorted(self.model)))
        root, held = self.model[holder]
        keys = {key(root, path[: end + 1]) for end in range(len(path))}
        assert self.view.store(holder, chain(root, path)) == len(keys - held)
        held |= keys

    @rule(data=st.data(), path=PATHS)
    @precondition(lambda self: self.model)
    def remove_a_block_and_its_descendants(
        self, data: st.DataObject, path: tuple[int, ...]
    ) -> None:
        holder = data.draw(st.sampled_from(sorted(self.model)))
        root, held = self.model[holder]
        gone = {k for k in held if k[1] >= len(path) and k[2 : 2 + len(path)] == bytes(path)}
        unknown = key(root, (1, 1, 1, 1, 1, 1, 1))
        assert self.view.remove(holder, b"".join(sorted(gone)) + unknown) == len(gone)
        held -= gone

    @rule(data=st.data())
    @precondition(lambda self: self.model)
    def drop_a_holder(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.model)))
        self.view.drop_holder(holder)
        del self.model[holder]

    @rule(budget=st.integers(1, 20))
    def sweep(self, budget: int) -> None:
        if self.view.sweep(budget):
            assert not self.view.needs_sweep

    @rule(root=st.integers(0, 1), path=PATHS)
    def match_equals_a_walk(self, root: int, path: tuple[int, ...]) -> None:
        expected = {}
        for holder, (own_root, held) in self.model.items():
            depth = 0
            while depth < len(path) and key(root, path[: depth + 1]) in held:
                depth += 1
            if depth and own_root == root:
                expected[holder] = depth
        found = self.view.match(ROOTS[root], chain(root, path))
        assert {depth.holder: depth.num_blocks for depth in found} == expected
        assert found == sorted(found, key=lambda depth: (-depth.num_blocks, depth.holder))

    @invariant()
    def is_sound(self) -> None:
        self.view.check_integrity()
        for holder, (_, held) in self.model.items():
            assert self.view.num_blocks(holder) == len(held)


TestViewAgainstModel = ViewAgainstModel.TestCase
TestViewAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
