"""What it takes to bring missing blocks of a prefix from other nodes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.cost_model import Floats
from shared.scheduling.pricing import Ints, Prices, Situation, waits_s
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
    compute_s = situation.cost.prefill_many_s(situation.request.num_tokens, cached_tokens)
    prices.holders = (*prices.holders, holders)
    take(prices, is_wanted, cached_tokens, load_s, compute_s, waits_s(situation, compute_s))


def take(
    prices: Prices,
    is_taken: NDArray[np.bool_],
    cached_tokens: Ints,
    load_s: Floats,
    compute_s: Floats,
    queue_s: Floats,
) -> None:
    """Puts these numbers in place; they fetch from the last set of holders."""
    # The own disk is read at the same time.
    load_s = np.maximum(load_s, prices.load_s)
    prices.cached_tokens = np.where(is_taken, cached_tokens, prices.cached_tokens)
    prices.load_s = np.where(is_taken, load_s, prices.load_s)
    prices.compute_s = np.where(is_taken, compute_s, prices.compute_s)
    prices.queue_s = np.where(is_taken, queue_s, prices.queue_s)
    prices.fetched_from = np.where(is_taken, len(prices.holders) - 1, prices.fetched_from)


def holders_by_depth(situation: Situation) -> Sequence[tuple[int, tuple[NodeMatch, ...]]]:
    """For the greatest depths: the nodes, least busy first, that hold the prefix so far."""
    if not situation.matches:
        return []
    bytes_per_s, now_s = situation.cost.bytes_per_s, situation.now_s
    by_depth = sorted(situation.matches.values(), key=lambda match: -match.num_blocks)
    depths = sorted({match.num_blocks for match in by_depth}, reverse=True)[:MAX_DEPTHS]
    ties = iter([situation.rng.random() for _ in by_depth])
    backlogs = {
        match.node: (
            situation.view.nodes.backlog_bytes((match.node, match.incarnation), now_s, bytes_per_s),
            next(ties),
        )
        for match in by_depth
    }
    found = []
    for depth in depths:
        able = [match for match in by_depth if match.num_blocks >= depth]
        able.sort(key=lambda match: backlogs[match.node])
        found.append((depth, tuple(able[: situation.max_sources])))
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
