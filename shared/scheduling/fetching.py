"""What it takes to bring missing blocks of a prefix from other nodes."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.cost_model import Floats
from shared.scheduling.pricing import Ints, Prices, Situation, delays_s, waits_s
from shared.scheduling.vocabulary import NodeMatch

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
    situation = prices.situation
    load_s = np.maximum(load_s, prices.disk_s)
    compute_s = situation.cost.prefill_many_s(situation.request.num_tokens, cached_tokens)
    queue_s = waits_s(situation, compute_s)
    prices.holders = (*prices.holders, holders)
    chosen = len(prices.holders) - 1
    prices.cached_tokens = np.where(is_wanted, cached_tokens, prices.cached_tokens)
    prices.load_s = np.where(is_wanted, load_s, prices.load_s)
    prices.compute_s = np.where(is_wanted, compute_s, prices.compute_s)
    prices.queue_s = np.where(is_wanted, queue_s, prices.queue_s)
    prices.fetched_from = np.where(is_wanted, chosen, prices.fetched_from)


def offer(
    prices: Prices, holders: tuple[NodeMatch, ...], link: "Link", at_hand: Ints, reach: Ints
) -> None:
    """Takes a fetch up to `reach` where that is cheaper than what is priced so far.

    While the queue hides the fetch, more is better. Beyond, each token fetched costs the link's
    time and saves compute that grows with its position: the best is where the queue ends, or all.
    """
    situation = prices.situation
    grid = situation.column("grid_tokens")
    token_bytes = situation.column("block_bytes") / situation.column("block_tokens")
    hidden = (link.bytes_within(prices.queue_s) / token_bytes).astype(np.int64) // grid * grid
    for upto in (np.minimum(at_hand + hidden, reach), reach):
        missing = np.maximum(upto - at_hand, 0)
        load_s = np.maximum(link.seconds(situation.bytes_of(missing)), prices.disk_s)
        compute_s = situation.cost.prefill_many_s(situation.request.num_tokens, upto)
        ttft_s = np.maximum(waits_s(situation, compute_s), load_s) + compute_s
        cost_s = ttft_s + delays_s(situation, compute_s)
        is_better = (missing > 0) & (cost_s < prices.cost_s)
        if is_better.any():
            fetch(prices, is_better, holders, upto, load_s)
            prices.cost_s = np.where(is_better, cost_s, prices.cost_s)


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
        self._base_s = cost.profile.transfer_base_s
        self._bytes_per_s = cost.bytes_per_s
        self._num_senders = len(holders)
        self._sent_first = sum(
            view.nodes.backlog_bytes((m.node, m.incarnation), now_s, cost.bytes_per_s)
            for m in holders
        )
        busy = view.nodes.busy(now_s, cost.bytes_per_s)
        received_first = situation.table.scatter((node, int(size)) for node, size in busy)
        self._received_first: Ints = received_first[situation.rows]

    def seconds(self, num_bytes: Ints) -> Floats:
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
