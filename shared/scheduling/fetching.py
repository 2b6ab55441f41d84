"""What it takes to bring missing blocks of a prefix from other nodes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.cost_model import CostModel
from shared.scheduling.fixed_facts import Floats, Ints
from shared.scheduling.node_loads import NodeLoads
from shared.scheduling.pricing import Offer, Prices, offer_of
from shared.scheduling.situation import Situation
from shared.scheduling.vocabulary import Candidate, NodeMatch, PlacementRequest

MAX_DEPTHS = 3
"""Depths of match that are weighed: the longest is often on few nodes, a shorter one on many."""


@dataclass(frozen=True, slots=True)
class Senders:
    """Nodes that hold a prefix of this depth, to fetch it from all of them at once."""

    num_blocks: int
    holders: tuple[NodeMatch, ...]
    waiting_bytes: float
    """What they have to send before, all together."""


def senders_by_depth(situation: Situation) -> Iterator[Senders]:
    """For the greatest depths: the nodes, least busy first, that hold the prefix so far."""
    depths = sorted(set(situation.depths), reverse=True)[:MAX_DEPTHS]
    if not depths:
        return
    nodes, now_s, speed = situation.view.nodes, situation.now_s, situation.cost.bytes_per_s
    draw, least = situation.rng.random, depths[-1]
    able = [
        (draw(), num_blocks, node)
        for node, num_blocks in zip(situation.matches, situation.depths, strict=True)
        if num_blocks >= least
    ]
    for depth in depths:
        chosen = sorted(
            [
                (nodes.backlog_bytes(node, now_s, speed), drawn, node)
                for drawn, num_blocks, node in able
                if num_blocks >= depth
            ]
        )[: situation.max_sources]
        holders = tuple(situation.matches[node] for _, _, node in chosen)
        yield Senders(depth, holders, sum(busy for busy, _, _ in chosen))


def offer(prices: Prices, senders: Senders) -> None:
    """Takes a fetch from them where that is cheaper than what is priced so far.

    While the queue hides the fetch, more is better. Beyond, each token fetched costs the link's
    time and saves compute that grows with its position: the best is where the queue ends, or all.
    """
    situation, at_hand = prices.situation, prices.at_hand
    reach = situation.usable_tokens(senders.num_blocks)
    compute_s = situation.cost.prefill_each_s(situation.request.num_tokens, reach)
    # What is sure to be paid: who computes less waits no shorter for that than it does now; who
    # computes more now pays more than this already.
    is_open = (reach > at_hand) & (prices.queue_s + compute_s < prices.cost_s)
    if not np.count_nonzero(is_open):
        return
    link = Link(situation, senders)
    all_s = link.seconds((reach - at_hand) * situation.facts.token_bytes)
    full = offer_of(situation, reach, _with_disk(prices, all_s), senders.holders)
    take_if_better(prices, full, at_hand)
    is_open &= (all_s > prices.queue_s) & (prices.queue_s > link.base_s)
    if np.count_nonzero(is_open):
        _offer_hidden(prices, link, full, is_open)


def _offer_hidden(prices: Prices, link: "Link", full: Offer, is_open: NDArray[np.bool_]) -> None:
    """As much of the full fetch as the queue hides, where it is open whether that is better."""
    situation, at_hand, reach = prices.situation, prices.at_hand, full.cached_tokens
    grid, token_bytes = situation.facts.grid_tokens, situation.facts.token_bytes
    hidden = (link.bytes_within(prices.queue_s) / token_bytes).astype(np.int64) // grid * grid
    upto: Ints = np.clip(at_hand + hidden, at_hand, np.maximum(reach, at_hand))
    compute_s = situation.cost.prefill_each_s(situation.request.num_tokens, upto)
    # It waits no shorter than with all of the prefix.
    if np.count_nonzero(is_open & (full.queue_s + compute_s < prices.cost_s)):
        part_s = link.seconds((upto - at_hand) * token_bytes)
        part = offer_of(situation, upto, _with_disk(prices, part_s), full.holders)
        take_if_better(prices, part, at_hand)


def _with_disk(prices: Prices, load_s: Floats) -> Floats:
    """The own disk is read at the same time."""
    return load_s if isinstance(prices.disk_s, float) else np.maximum(load_s, prices.disk_s)


def take_if_better(prices: Prices, new: Offer, at_hand: Ints) -> None:
    """Where it has more of the prompt than is at hand and costs less."""
    cost_s = new.cost_s()
    is_better = (new.cached_tokens > at_hand) & (cost_s < prices.cost_s)
    if np.count_nonzero(is_better):
        prices.take(new, is_better, cost_s)


class Link:
    """The way from some holders to every candidate: what waits on it, and its speed."""

    def __init__(self, situation: Situation, senders: Senders) -> None:
        cost = situation.cost
        # A sender reads what is on its disk before it sends; several do so at the same time.
        disk_blocks = max((holder.disk_blocks for holder in senders.holders), default=0)
        disk_s = disk_blocks * situation.facts.block_bytes / cost.disk_bytes_per_s
        self.base_s: Floats | float = cost.profile.transfer_base_s + disk_s
        """Until the first byte moves."""
        self._bytes_per_s = cost.bytes_per_s
        self._num_senders = len(senders.holders)
        self._sent_first = senders.waiting_bytes
        run_off = (situation.now_s - situation.column("link_at_s")) * cost.bytes_per_s
        self._received_first: Floats = np.maximum(situation.column("link_bytes") - run_off, 0.0)

    def seconds(self, num_bytes: NDArray[Any]) -> Floats:
        """Senders share the bytes so that all end at once; the receiver takes all of them."""
        sending = (num_bytes + self._sent_first) / self._num_senders
        receiving = num_bytes + self._received_first
        seconds: Floats = self.base_s + np.maximum(sending, receiving) / self._bytes_per_s
        return seconds

    def bytes_within(self, seconds: Floats) -> Floats:
        """How much arrives in so long."""
        room = np.maximum(seconds - self.base_s, 0.0) * self._bytes_per_s
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
