"""Prices prefill candidates: ways to serve the prompt, the cheapest of each, and their order.

All candidates at once, as columns; an object is made only of a candidate that somebody looks at.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.fixed_facts import Floats, Ints
from shared.scheduling.instance_table import Rows
from shared.scheduling.situation import Situation, waits_and_delays_s
from shared.scheduling.vocabulary import Candidate, NodeMatch, PredictedTimes, Source

FEW = 32
"""So many candidates are sooner sorted than searched for the best."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to serve the prompt, priced for all candidates; a number is that of each."""

    cached_tokens: Ints | int
    """At hand and fetched ones."""
    load_s: Floats | float
    compute_s: Floats | float
    queue_s: Floats
    delay_s: Floats | float
    """What the work costs those that wait there and are overtaken, all together."""
    holders: tuple[NodeMatch, ...] = ()
    """Nodes to fetch from."""

    def cost_s(self) -> Floats:
        """The request's TTFT (loading runs while it queues), and what others lose."""
        costs: Floats = np.maximum(self.queue_s, self.load_s) + self.compute_s + self.delay_s
        return costs


@dataclass(slots=True)
class Prices:
    """One entry per candidate, in the order of `rows`; `order` is what a policy decides."""

    situation: Situation
    local_blocks: Ints
    at_hand: Ints
    """Tokens that need be neither computed nor fetched."""
    disk_s: Floats | float
    """To read the part of the own prefix that is on disk; a fetch goes on meanwhile."""
    offers: list[Offer]
    """The first, for all: with what the own node holds, and nothing fetched."""
    cost_s: Floats
    cost_unit: str = field(default="s", init=False)
    queue_s: Floats = field(init=False)
    """By the offer that is chosen."""
    chosen: Ints = field(init=False)
    """Which of the offers."""
    order: Rows = field(init=False)
    """Positions, best first; as many as are wanted."""

    def __post_init__(self) -> None:
        self.queue_s = self.offers[0].queue_s.copy()
        self.chosen = np.zeros(len(self.queue_s), np.int64)
        self.order = np.zeros(0, np.intp)

    def __len__(self) -> int:
        """Of all candidates."""
        return len(self.queue_s)

    @property
    def cached_tokens(self) -> Ints:
        """By the offer that is chosen, as all that follow."""
        values: Ints = self._chosen_values("cached_tokens").astype(np.int64)
        return values

    @property
    def load_s(self) -> Floats:
        return self._chosen_values("load_s")

    @property
    def compute_s(self) -> Floats:
        return self._chosen_values("compute_s")

    @property
    def ttft_s(self) -> Floats:
        """Loading runs while the request queues."""
        ttfts: Floats = np.maximum(self.queue_s, self.load_s) + self.compute_s
        return ttfts

    def _chosen_values(self, name: str) -> Floats:
        values = np.zeros(len(self))
        for number, offer in enumerate(self.offers):
            is_chosen = self.chosen == number
            value = getattr(offer, name)
            values[is_chosen] = value[is_chosen] if isinstance(value, np.ndarray) else value
        return values

    def take(self, offer: Offer, is_taken: NDArray[np.bool_], cost_s: Floats) -> None:
        """By these candidates."""
        number = len(self.offers)
        self.offers.append(offer)
        np.copyto(self.chosen, number, where=is_taken)
        np.copyto(self.cost_s, cost_s, where=is_taken)
        np.copyto(self.queue_s, offer.queue_s, where=is_taken)

    def in_order(self) -> Iterator[Candidate]:
        return (self.candidate(position) for position in self.order.tolist())

    def candidate(self, position: int, best_s: float | None = None) -> Candidate:
        """`best_s`: what the winner costs, to say why this one is not it."""
        situation = self.situation
        view = situation.table.view(int(situation.rows[position]))
        offer = self.offers[self.chosen.item(position)]
        cached = int(_at(offer.cached_tokens, position))
        cost_s = self.cost_s.item(position)
        predicted = PredictedTimes(
            queue_s=self.queue_s.item(position),
            load_s=_at(offer.load_s, position),
            compute_s=_at(offer.compute_s, position),
            # Of the winner's bill it is known once decode is chosen.
            overhead_s=0.0 if best_s is None else situation.cost.request_s,
        )
        return Candidate(
            prefill=view,
            local_blocks=self.local_blocks.item(position),
            cached_tokens=cached,
            # Blocks beyond the last whole chunk would be moved and then computed all the same.
            sources=tuple(
                [
                    Source(holder.node, holder.incarnation, cached // view.block_tokens)
                    for holder in offer.holders
                ]
            ),
            predicted=predicted,
            cost_s=cost_s,
            reason=_why(cost_s, best_s, self.cost_unit),
        )


def _why(cost_s: float, best_s: float | None, unit: str) -> str:
    """A candidate was not taken."""
    if best_s is None:
        return ""
    if cost_s > best_s:
        return f"cost {cost_s:.3f} {unit}, the winner's {best_s:.3f} {unit}"
    if cost_s < best_s:
        return (
            f"cost {cost_s:.3f} {unit}, less than the winner's, but the policy does not go by cost"
        )
    return f"cost {cost_s:.3f} {unit} as the winner: one of equals was taken at random"


def _at(value: Floats | Ints | float, position: int) -> float:
    return value.item(position) if isinstance(value, np.ndarray) else value


def price_local(situation: Situation) -> Prices:
    """Every candidate with what its own node holds; nothing is fetched, and nothing overlaps."""
    if not situation.matches:
        return _price_cold(situation)
    held = situation.table.by_node(situation.matches, situation.depths, situation.rows)
    local_blocks = np.minimum(held, situation.request.num_blocks)
    load_s = disk_s(situation, local_blocks)
    local = offer_of(situation, situation.usable_tokens(local_blocks), load_s)
    cost_s = load_s + local.queue_s + local.compute_s
    at_hand = np.asarray(local.cached_tokens)
    return Prices(situation, local_blocks, at_hand, load_s, [local], cost_s)


def _price_cold(situation: Situation) -> Prices:
    """The same where nobody holds anything: what is alike for all stays a number."""
    nothing = np.zeros(len(situation.rows), np.int64)
    local = offer_of(situation, 0, 0.0)
    return Prices(situation, nothing, nothing, 0.0, [local], local.queue_s + local.compute_s)


def offer_of(
    situation: Situation,
    cached_tokens: Ints | int,
    load_s: Floats | float,
    holders: tuple[NodeMatch, ...] = (),
) -> Offer:
    compute_s = situation.cost.prefill_each_s(situation.request.num_tokens, cached_tokens)
    queue_s, delay_s = waits_and_delays_s(situation, compute_s)
    return Offer(cached_tokens, load_s, compute_s, queue_s, delay_s, holders)


def disk_s(situation: Situation, local_blocks: Ints) -> Floats | float:
    """To read what of the own prefix is on disk."""
    num_bytes = situation.disk_blocks(local_blocks) * situation.facts.block_bytes
    return num_bytes / situation.cost.disk_bytes_per_s


def random_numbers(count: int, rng: random.Random) -> NDArray[np.uint64]:
    return np.frombuffer(rng.randbytes(8 * count), np.uint64)


def cheapest_first(prices: Prices, cost_s: Floats | None = None) -> Prices:
    """The wanted ones by cost; equals in random order, so that a burst does not go one way."""
    if cost_s is not None:
        prices.cost_s = cost_s
    costs_s, wanted = prices.cost_s, prices.situation.num_wanted
    if len(costs_s) == 1:
        prices.order = np.zeros(1, np.intp)
        return prices
    rng = prices.situation.rng
    if wanted is None or len(costs_s) <= max(wanted, FEW):
        prices.order = _in_order(costs_s, rng)[:wanted]
        return prices
    limit_s = np.partition(costs_s, wanted - 1)[wanted - 1]
    best = np.flatnonzero(costs_s <= limit_s)
    in_order = np.lexsort((random_numbers(len(best), rng), costs_s[best]))
    prices.order = best[in_order[:wanted]]
    return prices


def _in_order(costs_s: Floats, rng: random.Random) -> Rows:
    order = costs_s.argsort()
    in_order = costs_s[order]
    if np.count_nonzero(in_order[1:] == in_order[:-1]):
        shuffled = random_numbers(len(order), rng).argsort()
        order = shuffled[costs_s[shuffled].argsort()]
    return order
