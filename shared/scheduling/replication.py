"""Which hot prefix gets another replica, where, and when it is worth its bytes. Pure.

A placement that ran where its cached prefix was not pays for it: seconds of fetch or of computing
again. What was paid is added up by prefix, decayed; a replica on the node that would be chosen next
saves a part of what is still to come, and costs the links and what it pushes out. Without misses
nothing is decided, so it ends by itself.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shared.kv.block_keys import key_at, num_keys, take
from shared.scheduling.cost_model import CostModel
from shared.scheduling.vocabulary import NodeMatch, PlacementDecision, PlacementRequest

PrefixKey = tuple[bytes, bytes]
"""(root, key of the last block)"""
MIN_MISSES = 1.5
"""What was missed once is not hot."""
AS_OFTEN = 0.9
MAX_WEIGHED = 64
"""Of the hottest prefixes, when they are compared with one another."""
MIN_WEIGHT = 0.1
"""Below this a prefix is forgotten."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    life_s: float = 30.0
    """Mean time that a miss counts for."""
    horizon_s: float = 60.0
    """How far ahead savings are counted."""
    budget_bytes_per_s: float = 64e6
    """Of each node, sending and receiving, in the mean."""
    background_weight: float = 0.25
    """What a second of a link, used behind requests, costs them."""
    reuse_share: float = 0.1
    """How many of the blocks that a pool lets go first would have been used again."""
    retry_s: float = 10.0
    """After a copy failed: until the same is tried again."""
    max_prefixes: int = 512
    max_blocks: int = 4_096
    """Of one prefix; more of it is not copied ahead."""


@dataclass(frozen=True, slots=True)
class Miss:
    """What one placement paid because its node did not have what another one has."""

    model: str
    root: bytes
    chain: bytes
    """The cached prefix, as long as somebody has it."""
    had_blocks: int
    """Of it, what the node had."""
    block_bytes: int
    paid_s: float
    """Each."""
    count: float = 1.0
    """Placements that did."""


@dataclass(slots=True)
class HotPrefix:
    model: str
    root: bytes
    chain: bytes
    """Its first `num_blocks` keys are the prefix; shared with others of the table."""
    num_blocks: int
    block_bytes: int
    misses: float = 0.0
    """Decayed, at `at_s`."""
    paid_s: float = 0.0
    at_s: float = 0.0
    blocked_until_s: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> PrefixKey:
        return (self.root, key_at(self.chain, self.num_blocks - 1))

    @property
    def keys(self) -> bytes:
        return take(self.chain, self.num_blocks)

    def is_start_of(self, other: "HotPrefix") -> bool:
        """A proper prefix of the other."""
        return (
            self.num_blocks < other.num_blocks
            and self.root == other.root
            and key_at(other.chain, self.num_blocks - 1) == self.key[1]
        )

    def decay(self, now_s: float, life_s: float) -> None:
        if now_s > self.at_s:
            left = math.exp((self.at_s - now_s) / life_s)
            self.misses *= left
            self.paid_s *= left
            self.at_s = now_s


@dataclass(frozen=True, slots=True)
class TargetNode:
    """A node where prompts of the model are computed."""

    node: str
    incarnation: str
    wait_s: float
    """Until a prompt that comes now would start."""
    free_blocks: int
    had_blocks: int = 0
    """Of the prefix in question."""
    bytes_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica to make."""

    prefix: PrefixKey
    source: tuple[str, str]
    target: tuple[str, str]
    num_bytes: int
    num_without: int
    """Nodes that do not have it yet, the target among them."""
    saving_s: float
    cost_s: float


def miss_of(
    request: PlacementRequest,
    matches: Iterable[NodeMatch],
    decision: PlacementDecision,
    cost: CostModel,
) -> Miss | None:
    """What a placement pays for not running where its prefix is; None: nothing."""
    winner, prefill = decision.winner, decision.winner.prefill
    depth = max((match.num_blocks for match in matches), default=0)
    depth = min(depth, request.num_blocks)
    full = prefill.usable_tokens(depth, request.num_tokens)
    if not request.use_cache or full <= prefill.usable_tokens(
        winner.local_blocks, request.num_tokens
    ):
        return None
    fetch_s = winner.predicted.load_s if winner.sources else 0.0
    again_s = cost.prefill_s(request.num_tokens, winner.cached_tokens) - cost.prefill_s(
        request.num_tokens, full
    )
    paid_s = fetch_s + max(0.0, again_s)
    if paid_s <= 0.0:
        return None
    return Miss(
        request.model,
        prefill.root,
        take(request.chain, depth),
        winner.local_blocks,
        prefill.block_bytes,
        paid_s,
    )


class Replication:
    """The table of hot prefixes, and what each node may still move."""

    def __init__(self, settings: ReplicationSettings) -> None:
        self.settings = settings
        self._prefixes: dict[PrefixKey, HotPrefix] = {}
        self._running: dict[PrefixKey, set[str]] = {}
        """Nodes that a copy is on its way to."""
        self._free_at_s: dict[str, float] = {}
        """By node: when its budget allows the next copy."""

    def __len__(self) -> int:
        return len(self._prefixes)

    # --- what is missed ------------------------------------------------------------------------
    def observe(self, miss: Miss, now_s: float) -> None:
        """Counts it at its own length and at 1, 2, 4, 8... blocks, each with its share."""
        depth = num_keys(miss.chain)
        for length in _lengths(miss.had_blocks, min(depth, self.settings.max_blocks)):
            key = (miss.root, key_at(miss.chain, length - 1))
            hot = self._prefixes.get(key)
            if hot is None:
                hot = self._prefixes[key] = HotPrefix(
                    miss.model, miss.root, miss.chain, length, miss.block_bytes, at_s=now_s
                )
            hot.decay(now_s, self.settings.life_s)
            share = (length - miss.had_blocks) / (depth - miss.had_blocks)
            hot.misses += miss.count
            hot.paid_s += miss.count * miss.paid_s * share
        if len(self._prefixes) > 2 * self.settings.max_prefixes:
            self.forget(now_s)

    def forget(self, now_s: float) -> None:
        """Drop what is cold, and of the rest what cost least."""
        for hot in self._prefixes.values():
            hot.decay(now_s, self.settings.life_s)
        live = sorted(
            (one for one in self._prefixes.items() if one[1].misses >= MIN_WEIGHT),
            key=lambda one: -one[1].paid_s,
        )
        self._prefixes = dict(live[: self.settings.max_prefixes])
        self._free_at_s = {name: at_s for name, at_s in self._free_at_s.items() if at_s > now_s}

    def candidates(self, now_s: float, limit: int) -> list[HotPrefix]:
        """Prefixes that are missed most, in seconds; whoever acts asks who holds them.

        Not those of which a longer one is missed as often: that saves more.
        """
        self.forget(now_s)
        hot = [one for one in self._prefixes.values() if one.misses >= MIN_MISSES]
        hot.sort(key=lambda one: (-one.paid_s, one.num_blocks, one.key))
        hot = hot[:MAX_WEIGHED]
        worth = [
            one
            for one in hot
            if not any(
                one.is_start_of(other) and other.misses >= AS_OFTEN * one.misses for other in hot
            )
        ]
        return worth[:limit]

    # --- what to copy --------------------------------------------------------------------------
    def plan(
        self,
        hot: HotPrefix,
        holders: Sequence[tuple[str, str]],
        targets: Sequence[TargetNode],
        cost: CostModel,
        now_s: float,
    ) -> Copy | None:
        """One more replica, to the least loaded node without one, if that is worth it now.

        `holders` have the whole prefix, in the order to read from; `targets` may be among them.
        """
        running = self._running.get(hot.key, set())
        has_it = {node for node, _ in holders} | running
        without = [target for target in targets if target.node not in has_it]
        source = next((one for one in holders if self._may_move(one[0], now_s)), None)
        if source is None or not without:
            return None
        hot.decay(now_s, self.settings.life_s)
        able = [
            target
            for target in without
            if self._may_move(target.node, now_s)
            and hot.blocked_until_s.get(target.node, 0.0) <= now_s
        ]
        if hot.misses < MIN_MISSES or not able:
            return None
        target = min(able, key=lambda one: (one.wait_s, one.bytes_in_flight, one.node))
        missing = hot.num_blocks - min(target.had_blocks, hot.num_blocks)
        saving_s = self._saving_s(hot, len(without))
        cost_s = self._cost_s(hot, target, missing, cost)
        if missing <= 0 or saving_s <= cost_s:
            return None
        return Copy(
            prefix=hot.key,
            source=source,
            target=(target.node, target.incarnation),
            num_bytes=missing * hot.block_bytes,
            num_without=len(without),
            saving_s=saving_s,
            cost_s=cost_s,
        )

    def _saving_s(self, hot: HotPrefix, num_without: int) -> float:
        """What one of these nodes would pay within the horizon.

        The first miss leaves a copy there: after it only those pay that come while it is brought.
        """
        paid_s = hot.paid_s / hot.misses
        rate = hot.misses / self.settings.life_s / num_without
        expected = rate * self.settings.horizon_s
        return min(expected, 1.0 - math.exp(-expected) + rate * paid_s) * paid_s

    def _cost_s(self, hot: HotPrefix, target: TargetNode, missing: int, cost: CostModel) -> float:
        move_s = cost.transfer_s(missing * hot.block_bytes) * self.settings.background_weight
        pushed_out = max(0, missing - target.free_blocks)
        again_s = hot.paid_s / hot.misses * pushed_out / hot.num_blocks
        return move_s + again_s * self.settings.reuse_share

    def _may_move(self, node: str, now_s: float) -> bool:
        return self._free_at_s.get(node, 0.0) <= now_s

    # --- what became of it ---------------------------------------------------------------------
    def started(self, copy: Copy, now_s: float) -> None:
        """The budget of both ends is used; the target's share of the misses is taken as gone."""
        busy_s = copy.num_bytes / self.settings.budget_bytes_per_s
        for node, _ in (copy.source, copy.target):
            self._free_at_s[node] = max(now_s, self._free_at_s.get(node, 0.0)) + busy_s
        self._running.setdefault(copy.prefix, set()).add(copy.target[0])
        hot = self._prefixes.get(copy.prefix)
        if hot is None:
            return
        saved = hot.misses / copy.num_without
        for length in _lengths(0, hot.num_blocks):
            shorter = self._prefixes.get((hot.root, key_at(hot.chain, length - 1)))
            if shorter is not None and shorter.misses > 0:
                left = max(0.0, 1.0 - saved / shorter.misses)
                shorter.misses *= left
                shorter.paid_s *= left

    def finished(self, copy: Copy, now_s: float, *, is_done: bool) -> None:
        running = self._running.get(copy.prefix, set())
        running.discard(copy.target[0])
        if not running:
            self._running.pop(copy.prefix, None)
        hot = self._prefixes.get(copy.prefix)
        if hot is not None and not is_done:
            hot.blocked_until_s[copy.target[0]] = now_s + self.settings.retry_s

    def check_integrity(self) -> None:
        assert len(self._prefixes) <= 2 * self.settings.max_prefixes + 64, (
            "the table is not bounded"
        )
        for key, hot in self._prefixes.items():
            assert hot.key == key, "a prefix under a wrong key"
            assert hot.misses >= 0, "negative misses"
            assert hot.paid_s >= 0, "negative seconds"


def _lengths(had: int, depth: int) -> Iterator[int]:
    """Lengths beyond what is had: powers of two, and all of it."""
    length = 1
    while length < depth:
        if length > had:
            yield length
        length *= 2
    if depth > had:
        yield depth
