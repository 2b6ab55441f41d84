"""ResidencyView against a model that walks every chain, on trees of chains with random changes."""

import random

from hypothesis import given, settings
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
        self.model: dict[HolderId, tuple[int, dict[bytes, bool]]] = {}
        """What each holder has; True: only on disk."""

    @rule(root=st.integers(0, 1))
    @precondition(lambda self: len(self.model) < 5)
    def add_holder(self, root: int) -> None:
        holder = self.view.add_holder(ROOTS[root])
        assert holder not in self.model
        self.model[holder] = (root, {})

    @rule(data=st.data(), path=PATHS, on_disk=st.booleans())
    @precondition(lambda self: self.model)
    def store_a_chain(self, data: st.DataObject, path: tuple[int, ...], on_disk: bool) -> None:
        holder = data.draw(st.sampled_from(sorted(self.model)))
        root, held = self.model[holder]
        keys = {key(root, path[: end + 1]) for end in range(len(path))}
        stored = self.view.store(holder, chain(root, path), on_disk=on_disk)
        assert stored == len(keys - held.keys())
        held |= dict.fromkeys(keys, on_disk)

    @rule(data=st.data(), path=PATHS, on_disk=st.booleans())
    @precondition(lambda self: self.model)
    def move_one_block_to_another_tier(
        self, data: st.DataObject, path: tuple[int, ...], on_disk: bool
    ) -> None:
        holder = data.draw(st.sampled_from(sorted(self.model)))
        root, held = self.model[holder]
        if key(root, path) in held:
            assert self.view.store(holder, key(root, path), len(path) - 1, on_disk=on_disk) == 0
            held[key(root, path)] = on_disk

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
        for each in gone:
            del held[each]

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
                tiers = [held[key(root, path[: end + 1])] for end in range(depth)]
                expected[holder] = (depth, tiers.index(True) if True in tiers else depth)
        found = self.view.match(ROOTS[root], chain(root, path))
        assert {each.holder: (each.num_blocks, each.memory_blocks) for each in found} == expected
        assert found == sorted(found, key=lambda depth: (-depth.num_blocks, depth.holder))

    @rule(root=st.integers(0, 1), path=PATHS)
    def holders_of_a_block_are_those_that_have_it(self, root: int, path: tuple[int, ...]) -> None:
        block = key(root, path)
        expected = {
            (holder, held[block])
            for holder, (own_root, held) in self.model.items()
            if own_root == root and block in held
        }
        assert set(self.view.holders_of(ROOTS[root], block)) == expected

    @invariant()
    def is_sound(self) -> None:
        self.view.check_integrity()
        for holder, (_, held) in self.model.items():
            assert self.view.num_blocks(holder) == len(held)


def test_a_large_view_equals_its_model_while_it_grows_shrinks_and_is_swept() -> None:
    """Enough blocks for many growths, and for matches in the middle of them."""
    rng = random.Random(5)
    view, chains = ResidencyView(), [rng.randbytes(16 * 60) for _ in range(400)]
    depths: dict[HolderId, dict[bytes, int]] = {}
    for step in range(3_000):
        if len(depths) < 5 or rng.random() < 0.003:
            depths[view.add_holder(ROOTS[0])] = {}
        if rng.random() < 0.003:
            gone = rng.choice(list(depths))
            del depths[gone]
            view.drop_holder(gone)
        holder, one = rng.choice(list(depths.items())) if depths else (view.add_holder(b""), {})
        packed = rng.choice(chains)
        before, after = one.get(packed, 0), rng.randrange(61)
        if after > before:
            view.store(holder, packed[16 * before : 16 * after], before)
        else:
            view.remove(holder, packed[16 * after : 16 * before])
        one[packed] = after
        view.sweep(rng.randrange(1, 5_000))
        asked = rng.choice(chains)
        found = {each.holder: each.num_blocks for each in view.match(ROOTS[0], asked)}
        assert found == {h: own[asked] for h, own in depths.items() if own.get(asked)}
        if step % 250 == 0:
            view.check_integrity()
    while not view.sweep(10_000):
        pass
    assert view.num_keys == len(
        {packed[16 * at : 16 * at + 8] for own in depths.values()
         for packed, depth in own.items() for at in range(depth)}
    )  # fmt: skip
    view.check_integrity()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_at_its_budget_a_view_lets_the_deepest_blocks_go_and_stays_a_lower_bound(
    seed: int,
) -> None:
    rng = random.Random(seed)
    view = ResidencyView(max_bytes=2_048 * 13 * 2)
    holders = [view.add_holder(ROOTS[0]) for _ in range(3)]
    depths: dict[tuple[HolderId, bytes], int] = {}
    for _ in range(60):
        holder, packed = rng.choice(holders), rng.randbytes(16 * rng.randrange(1, 90))
        view.store(holder, packed)
        depths[holder, packed] = len(packed) // 16
        assert view.num_keys <= 2_048 * 0.7
        view.check_integrity()
    if sum(depths.values()) > 2_048 * 0.7:
        assert view.evicted_total
    assert view.horizon == 128 or view.evicted_total
    for (holder, packed), depth in depths.items():
        found = {each.holder: each.num_blocks for each in view.match(ROOTS[0], packed)}
        # What was stored after the last eviction may be whole; nothing is longer than it was.
        assert found.get(holder, 0) <= min(depth, max(view.horizon, 1))


TestViewAgainstModel = ViewAgainstModel.TestCase
TestViewAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
