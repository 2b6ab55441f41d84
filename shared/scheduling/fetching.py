"""What it takes to bring missing blocks of a prefix from other nodes."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.cost_model import CostModel, Floats
from shared.scheduling.node_loads import NodeLoads
from shared.scheduling.pricing import Ints, Prices, Situation, waits_and_delays_s
from shared.scheduling.vocabulary import Candidate, NodeMatch, PlacementRequest

MAX_DEPTHS = 3
"""Depths of match that are weighed: the longest is often on few nodes, a shorter one on many."""


def fetch(
    prices: Prices,
    is_wanted: NDArray[np.bool_],
    holders: tuple[NodeMatch, ...],
    cached_tokens: Ints,
    load_s: Floats,
) -> None:
    """Reprices the wanted candidates with the fetch of what misses up to `cached_tokens`."""
    _take(prices, is_wanted, holders, _offer_of(prices, cached_tokens, load_s))


def offer(
    prices: Prices, holders: tuple[NodeMatch, ...], link: "Link", at_hand: Ints, reach: Ints
) -> None:
    """Takes a fetch up to `reach` where that is cheaper than what is priced so far.

    While the queue hides the fetch, more is better. Beyond, each token fetched costs the link's
    time and saves compute that grows with its position: the best is where the queue ends, or all.
    """
    situation = prices.situation
    token_bytes = situation.token_bytes
    all_s = link.seconds((reach - at_hand) * token_bytes)
    take_if_better(prices, holders, at_hand, _offer_of(prices, reach, all_s))
    if not (all_s > prices.queue_s).any():
        return
    grid = situation.column("grid_tokens")
    hidden = (link.bytes_within(prices.queue_s) / token_bytes).astype(np.int64) // grid * grid
    upto = np.clip(at_hand + hidden, at_hand, np.maximum(reach, at_hand))
    part_s = link.seconds((upto - at_hand) * token_bytes)
    take_if_better(prices, holders, at_hand, _offer_of(prices, upto, part_s))


@dataclass(frozen=True, slots=True)
class Offer:
    """Another way to serve the prompt, for every candidate."""

    cached_tokens: Ints
    load_s: Floats
    compute_s: Floats
    queue_s: Floats
    delay_s: Floats


def _offer_of(prices: Prices, cached_tokens: Ints, load_s: Floats) -> Offer:
    situation = prices.situation
    compute_s = situation.cost.prefill_many_s(situation.request.num_tokens, cached_tokens)
    queue_s, delay_s = waits_and_delays_s(situation, compute_s)
    # The own disk is read at the same time.
    return Offer(cached_tokens, np.maximum(load_s, prices.disk_s), compute_s, queue_s, delay_s)


def take_if_better(
    prices: Prices, holders: tuple[NodeMatch, ...], at_hand: Ints, new: Offer
) -> None:
    """Where it has more of the prompt than is at hand and costs less."""
    cost_s = np.maximum(new.queue_s, new.load_s) + new.compute_s + new.delay_s
    is_better = (new.cached_tokens > at_hand) & (cost_s < prices.cost_s)
    if is_better.any():
        _take(prices, is_better, holders, new)
        prices.cost_s = np.where(is_better, cost_s, prices.cost_s)


def _take(
    prices: Prices, is_taken: NDArray[np.bool_], holders: tuple[NodeMatch, ...], new: Offer
) -> None:
    prices.holders = (*prices.holders, holders)
    prices.fetched_from = np.where(is_taken, len(prices.holders) - 1, prices.fetched_from)
    prices.cached_tokens = np.where(is_taken, new.cached_tokens, prices.cached_tokens)
    prices.load_s = np.where(is_taken, new.load_s, prices.load_s)
    prices.compute_s = np.where(is_taken, new.compute_s, prices.compute_s)
    prices.queue_s = np.where(is_taken, new.queue_s, prices.queue_s)
    prices.delay_s = np.where(is_taken, new.delay_s, prices.delay_s)


def holders_by_depth(situation: Situation) -> Sequence[tuple[int, tuple[NodeMatch, ...]]]:
    """For the greatest depths: the nodes, least busy first, that hold the prefix so far."""
    depths = sorted({match.num_blocks for match in situation.matches.values()}, reverse=True)
    depths = depths[:MAX_DEPTHS]
    by_node: list[tuple[float, float, NodeMatch]] = []
    for node, match in situation.matches.items():
        if match.num_blocks >= depths[-1]:
            busy = situation.view.nodes.backlog_bytes(
                node, situation.now_s, situation.cost.bytes_per_s
            )
            by_node.append((busy, situation.rng.random(), match))
    by_node.sort(key=lambda one: one[:2])
    found = []
    for depth in depths:
        able = (match for _, _, match in by_node if match.num_blocks >= depth)
        found.append((depth, tuple(itertools.islice(able, situation.max_sources))))
    return found


class Link:
    """The way from some holders to every candidate: what waits on it, and its speed."""

    def __init__(self, situation: Situation, holders: tuple[NodeMatch, ...]) -> None:
        cost, view, now_s = situation.cost, situation.view, situation.now_s
        # A sender reads what is on its disk before it sends; several do so at the same time.
        disk_blocks = max((holder.disk_blocks for holder in holders), default=0)
        disk_s = disk_blocks * situation.column("block_bytes") / cost.disk_bytes_per_s
        self._base_s: Floats = cost.profile.transfer_base_s + disk_s
        self._bytes_per_s = cost.bytes_per_s
        self._num_senders = len(holders)
        self._sent_first = sum(
            view.nodes.backlog_bytes((m.node, m.incarnation), now_s, cost.bytes_per_s)
            for m in holders
        )
        busy = view.nodes.busy(now_s, cost.bytes_per_s)
        received_first = situation.table.scatter((node, int(size)) for node, size in busy)
        self._received_first: Ints = received_first[situation.rows]

    @property
    def is_idle(self) -> bool:
        """Nothing waits at the senders."""
        return self._sent_first == 0

    def seconds(self, num_bytes: Floats) -> Floats:
        """Senders share the bytes so that all end at once; the receiver takes all of them."""
        sending = (num_bytes + self._sent_first) / self._num_senders
        receiving = num_bytes + self._received_first
        seconds = self._base_s + np.maximum(sending, receiving) / self._bytes_per_s
        return np.where(num_bytes > 0, seconds, 0.0)

    def bytes_within(self, seconds: Floats) -> Floats:
        """How much arrives in so long."""
        room = np.maximum(seconds - self._base_s, 0.0) * self._bytes_per_s
        within: Floats = np.minimum(
            room * self._num_senders - self._sent_first, room - self._received_first
        )
        return np.maximum(within, 0.0)


def count_fetch(
    nodes: NodeLoads, request: PlacementRequest, winner: Candidate, now_s: float, cost: CostModel
) -> None:
    """It starts with the reservation: who asks next finds these links busy."""
    if not winner.sources:
        return
    prefill, speed = winner.prefill, cost.bytes_per_s
    at_hand = prefill.usable_tokens(winner.local_blocks, request.num_tokens)
    num_bytes = (winner.cached_tokens - at_hand) * prefill.block_bytes // prefill.block_tokens
    nodes.add((prefill.node, prefill.node_incarnation), num_bytes, now_s, speed)
    for source in winner.sources:
        share = num_bytes / len(winner.sources)
        nodes.add((source.node, source.incarnation), share, now_s, speed)
