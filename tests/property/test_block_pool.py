"""BlockPool against a naive model that looks at everything every time."""

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.kv.block_pool import BlockPool
from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey
from shared.kv.pool_values import HeldBlock, Refusal, SealItem

NUM_SLOTS = 6
CAP = 5
OWNERS = st.sampled_from(["w1", "w2", "peer"])
HANDLES = st.sampled_from(["r1", "r2", "r3"])
# A tree of chains: a path of branch numbers names a block and all before it.
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5)


def chain_of(path: list[int]) -> list[BlockKey]:
    return [
        BlockKey("".join(map(str, path[: index + 1])).encode().rjust(16, b"."))
        for index in range(len(path))
    ]


@dataclass
class ModelBlock:
    parent: BlockKey | None
    slot: int
    generation: int
    last_used: int
    is_readable: bool = True
    holders: set[tuple[str, str]] = field(default_factory=set)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_SLOTS, LruEviction())
        self.blocks: dict[BlockKey, ModelBlock] = {}
        self.doomed: list[ModelBlock] = []
        self.own: dict[tuple[str, str], list[HeldBlock]] = {}
        self.private: dict[tuple[str, str], list[HeldBlock]] = {}
        self.seen_uses: set[tuple[int, int]] = set()
        self.mirror: set[BlockKey] = set()
        self.next_seq = 1
        self.now = 0

    # --- the model -------------------------------------------------------------------------------

    def num_own(self, owner: str | None = None) -> int:
        return sum(
            len(blocks)
            for table in (self.own, self.private)
            for (each, _), blocks in table.items()
            if owner in (None, each)
        )

    def num_free(self) -> int:
        return NUM_SLOTS - self.num_own() - len(self.blocks) - len(self.doomed)

    def below(self, key: BlockKey) -> set[BlockKey]:
        found = {key}
        while True:
            more = {each for each, block in self.blocks.items() if block.parent in found} - found
            if not more:
                return found
            found |= more

    def evictable(self) -> set[BlockKey]:
        return {
            key
            for key in self.blocks
            if not any(self.blocks[each].holders for each in self.below(key))
        }

    def evict(self, count: int) -> None:
        for _ in range(count):
            leaves = [
                key
                for key, block in self.blocks.items()
                if not block.holders and self.below(key) == {key}
            ]
            del self.blocks[min(leaves, key=lambda key: self.blocks[key].last_used)]

    def use(self, key: BlockKey) -> None:
        self.now += 1
        self.blocks[key].last_used = self.now

    def forget_holder(self, holder: tuple[str, str]) -> None:
        self.own.pop(holder, None)
        self.private.pop(holder, None)
        for block in [*self.blocks.values(), *self.doomed]:
            block.holders.discard(holder)
        self.doomed = [block for block in self.doomed if block.holders]

    # --- what callers do -------------------------------------------------------------------------

    @rule(owner=OWNERS, handle=HANDLES, count=st.integers(1, 4))
    def allocate(self, owner: str, handle: str, count: int) -> None:
        given = self.pool.allocate(owner, handle, count, CAP)
        room = CAP - self.num_own(owner)
        available = self.num_free() + len(self.evictable())
        if count > room:
            assert given == Refusal("over_cap", count, room)
            return
        if count > available:
            assert given == Refusal("pool_full", count, available)
            return
        assert isinstance(given, list)
        self.evict(max(0, count - self.num_free()))
        self.own.setdefault((owner, handle), []).extend(given)
        for block in given:
            use = (block.slot, block.generation)
            assert use not in self.seen_uses, "a generation came back"
            self.seen_uses.add(use)

    @precondition(lambda self: any(self.own.values()))
    @rule(data=st.data(), path=PATHS, start=st.integers(0, 4), count=st.integers(1, 4))
    def seal(self, data: Any, path: list[int], start: int, count: int) -> None:
        holder = data.draw(st.sampled_from(sorted(key for key, own in self.own.items() if own)))
        self.seal_as(holder, path, start, count)

    def seal_as(self, holder: tuple[str, str], path: list[int], start: int, count: int) -> None:
        chain = chain_of(path)
        keys = chain[start : start + min(count, len(self.own[holder]))]
        taken, self.own[holder] = self.own[holder][: len(keys)], self.own[holder][len(keys) :]
        items = [
            SealItem(block.slot, block.generation, 5, key)
            for block, key in zip(taken, keys, strict=True)
        ]
        sealed = self.pool.seal(*holder, start, chain, items)
        for offset, (block, key, result) in enumerate(zip(taken, keys, sealed, strict=True)):
            parent = chain[start + offset - 1] if start + offset else None
            existing = self.blocks.get(key)
            if existing is not None:
                assert result.is_duplicate
                assert result.block.slot == existing.slot
                existing.holders.add(holder)
                self.use(key)
            elif parent is not None and parent not in self.blocks:
                assert not result.is_readable
                self.private.setdefault(holder, []).append(block)
            else:
                assert result.is_readable
                assert not result.is_duplicate
                new = ModelBlock(parent, block.slot, block.generation, 0, holders={holder})
                self.blocks[key] = new
                self.use(key)

    @rule(path=PATHS)
    def compute_and_let_go(self, path: list[int]) -> None:
        """As a request does: it fills the pool with blocks that may be evicted."""
        self.allocate("w1", "done", min(len(path), CAP))
        if self.own.get(("w1", "done")):
            self.seal_as(("w1", "done"), path, 0, len(path))
        self.release("w1", "done")

    @rule(path=PATHS)
    def read_and_let_go(self, path: list[int]) -> None:
        self.lease("w2", "read", path)
        self.release("w2", "read")

    @precondition(lambda self: any(self.own.values()))
    @rule(data=st.data())
    def make_private(self, data: Any) -> None:
        holder = data.draw(st.sampled_from(sorted(key for key, own in self.own.items() if own)))
        block = self.own[holder].pop()
        (result,) = self.pool.seal(*holder, 0, [], [SealItem(block.slot, block.generation, 3)])
        assert not result.is_readable
        self.private.setdefault(holder, []).append(block)

    @rule(owner=OWNERS, handle=HANDLES, path=PATHS)
    def lease(self, owner: str, handle: str, path: list[int]) -> None:
        run = self.pool.lease(owner, handle, chain_of(path))
        expected = []
        for key in chain_of(path):
            if key not in self.blocks:
                break
            expected.append(key)
            self.blocks[key].holders.add((owner, handle))
        for key in reversed(expected):
            self.use(key)
        assert [block.key for block in run] == expected
        assert [(block.slot, block.generation) for block in run] == [
            (self.blocks[key].slot, self.blocks[key].generation) for key in expected
        ]

    @rule(owner=OWNERS, handle=HANDLES)
    def release(self, owner: str, handle: str) -> None:
        self.pool.release(owner, handle)
        self.forget_holder((owner, handle))

    @rule(owner=OWNERS)
    def lose_attachment(self, owner: str) -> None:
        self.pool.release_owner(owner)
        for handle in ("r1", "r2", "r3"):
            self.forget_holder((owner, handle))

    @rule(path=PATHS)
    def quarantine(self, path: list[int]) -> None:
        key = chain_of(path)[-1]
        removed = self.below(key) if key in self.blocks else set()
        assert self.pool.quarantine(key) == len(removed)
        if removed:
            slot, generation = self.blocks[key].slot, self.blocks[key].generation
            assert self.pool.generation(slot) > generation  # type: ignore[arg-type]
            self.seen_uses.add((slot, generation + 1))
        for each in removed:
            block = self.blocks.pop(each)
            if block.holders:
                self.doomed.append(block)

    @rule(max_blocks=st.integers(1, 4))
    def publish(self, max_blocks: int) -> None:
        while (change := self.pool.log.drain(max_blocks)) is not None:
            assert change.seq == self.next_seq
            self.next_seq += 1
            stored = {key for run in change.stored for key in run.keys}
            removed = {key for _, key in change.removed}
            assert not stored & removed
            assert removed <= self.mirror
            assert not stored & self.mirror
            self.mirror = (self.mirror - removed) | stored
        assert self.mirror == set(self.blocks)

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def parts_agree(self) -> None:
        self.pool.check_integrity()
        counts = self.pool.counts
        assert counts.free == self.num_free()
        assert counts.writing == sum(map(len, self.own.values()))
        assert counts.private == sum(map(len, self.private.values()))
        assert counts.sealed == len(self.blocks)
        assert counts.doomed == len(self.doomed)
        assert counts.evictable == len(self.evictable())

    @invariant()
    def readable_blocks_are_prefix_closed(self) -> None:
        for key, block in self.blocks.items():
            assert self.pool.is_readable(key)
            assert block.parent is None or block.parent in self.blocks

    @invariant()
    def the_inventory_is_the_readable_set(self) -> None:
        found: list[BlockKey] = []
        cursor: int | None = 0
        while cursor is not None:
            runs, cursor = self.pool.inventory(cursor, 3)
            found += [key for run in runs for key in run.keys]
        assert sorted(found) == sorted(self.blocks)


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestBlockPool = PoolMachine.TestCase
