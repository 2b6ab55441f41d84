"""Prices prefill candidates: what is at hand, what could be fetched, what must be computed.

All candidates at once, as columns; an object is made only of a candidate that somebody looks at.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.cost_model import CostModel, Floats
from shared.scheduling.instance_table import InstanceTable, Rows
from shared.scheduling.queue_discipline import NUM_SIZES, SIZE_EDGES_S
from shared.scheduling.vocabulary import (
    Candidate,
    NodeMatch,
    PlacementRequest,
    PredictedTimes,
    Source,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Situation:
    """All that a policy may look at. `rows` are eligible: live, not excluded, not draining."""

    request: PlacementRequest
    view: ClusterView
    rows: Rows
    matches: Mapping[tuple[str, str], NodeMatch]
    """By (node, node incarnation)."""
    cost: CostModel
    balancing_threshold: float
    rng: random.Random
    now_s: float
    max_sources: int = 1
    """Nodes that one prefix may be fetched from at once."""
    _columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Those that were looked at already."""

    @property
    def table(self) -> InstanceTable:
        return self.view.tables["prefill"]

    def column(self, name: str) -> NDArray[Any]:
        values = self._columns.get(name)
        if values is None:
            values = self._columns[name] = self.table.column(name, self.rows)
        return values

    def usable_tokens(self, num_blocks: Ints | int) -> Ints:
        """Tokens that a match saves at each candidate: whole grid chunks, never the last chunk."""
        grid = self.column("grid_tokens")
        matched = num_blocks * self.column("block_tokens") // grid * grid
        usable: Ints = np.minimum(matched, (self.request.num_tokens - 1) // grid * grid)
        return usable

    def disk_blocks(self, local_blocks: Ints) -> Ints:
        """Of these blocks on the own nodes, how many must be read from disk."""
        on_disk = [(node, m.disk_blocks) for node, m in self.matches.items() if m.disk_blocks]
        if not on_disk:
            return np.zeros(len(self.rows), np.int64)
        return np.minimum(self.table.scatter(on_disk)[self.rows], local_blocks)

    @cached_property
    def token_bytes(self) -> Floats:
        """KV of a token."""
        values: Floats = self.column("block_bytes") / self.column("block_tokens")
        return values

    @cached_property
    def num_sorted(self) -> int:
        """Candidates whose queue is known by size."""
        return int(np.count_nonzero(self.column("is_sorted")))

    @cached_property
    def done_s(self) -> Floats:
        """Work that is done since it was reported."""
        values: Floats = self.now_s - self.column("seen_s")
        return values

    @cached_property
    def first_class(self) -> NDArray[np.intp]:
        """Where a candidate's size classes start in the table's."""
        return self.rows * (NUM_SIZES + 1)

    @cached_property
    def num_prompts(self) -> Floats:
        """That wait at each candidate, where known by size."""
        values: Floats = self.table.prompts_below[self.rows, -1]
        return values


@dataclass(slots=True)
class Prices:
    """One entry per candidate, in the order of `rows`; `order` is what a policy decides."""

    situation: Situation
    local_blocks: Ints
    cached_tokens: Ints
    """At hand and fetched ones."""
    queue_s: Floats
    disk_s: Floats
    """To read the part of the own prefix that is on disk; a fetch goes on meanwhile."""
    load_s: Floats
    compute_s: Floats
    delay_s: Floats
    """What the work costs those that wait there and are overtaken, all together."""
    cost_s: Floats
    holders: Sequence[tuple[NodeMatch, ...]] = ()
    """Sets of nodes to fetch from."""
    fetched_from: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index of the set, -1: nothing is fetched."""
    order: Rows = field(default_factory=lambda: np.zeros(0, np.intp))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def best(self) -> Candidate:
        return self.candidate(int(self.order[0]))

    def in_order(self) -> Iterator[Candidate]:
        return (self.candidate(int(position)) for position in self.order)

    def candidate(self, position: int) -> Candidate:
        situation = self.situation
        view = situation.table.view(int(situation.rows[position]))
        cached = int(self.cached_tokens[position])
        predicted = PredictedTimes(
            queue_s=float(self.queue_s[position]),
            load_s=float(self.load_s[position]),
            compute_s=float(self.compute_s[position]),
        )
        chosen = int(self.fetched_from[position])
        return Candidate(
            prefill=view,
            local_blocks=int(self.local_blocks[position]),
            cached_tokens=cached,
            # Blocks beyond the last whole chunk would be moved and then computed all the same.
            sources=tuple(
                Source(holder.node, holder.incarnation, cached // view.block_tokens)
                for holder in (self.holders[chosen] if chosen >= 0 else ())
            ),
            predicted=predicted,
            cost_s=float(self.cost_s[position]),
        )


def price_local(situation: Situation) -> Prices:
    """Every candidate with what its own node holds; nothing is fetched."""
    request, cost = situation.request, situation.cost
    matches = situation.matches
    depths = situation.table.scatter((node, found.num_blocks) for node, found in matches.items())
    local_blocks = np.minimum(depths[situation.rows], request.num_blocks)
    cached = situation.usable_tokens(local_blocks)
    compute_s = cost.prefill_many_s(request.num_tokens, cached)
    queue_s, delay_s = waits_and_delays_s(situation, compute_s)
    load_s = disk_s(situation, local_blocks)
    return Prices(
        situation=situation,
        local_blocks=local_blocks,
        cached_tokens=cached,
        queue_s=queue_s,
        disk_s=load_s,
        load_s=load_s,
        compute_s=compute_s,
        delay_s=delay_s,
        cost_s=load_s + queue_s + compute_s,
        fetched_from=np.full(len(situation.rows), -1, np.int64),
    )


def disk_s(situation: Situation, local_blocks: Ints) -> Floats:
    """To read what of the own prefix is on disk."""
    num_bytes = situation.disk_blocks(local_blocks) * situation.column("block_bytes")
    seconds: Floats = num_bytes / situation.cost.disk_bytes_per_s
    return seconds


def ttfts_s(prices: Prices) -> Floats:
    """Loading runs while the request queues."""
    return np.maximum(prices.queue_s, prices.load_s) + prices.compute_s


def waits_s(situation: Situation, compute_s: Floats) -> Floats:
    """Until a newcomer of this work starts, by each candidate's own discipline."""
    return waits_and_delays_s(situation, compute_s)[0]


def waits_and_delays_s(situation: Situation, compute_s: Floats) -> tuple[Floats, Floats]:
    """Until a newcomer of this work starts; and what those that it goes before lose, together."""
    is_sorted, num_sorted = situation.column("is_sorted"), situation.num_sorted
    if not num_sorted:
        return fifo_waits_s(situation), np.zeros(len(compute_s))
    table = situation.table
    size = np.searchsorted(EDGES_S, compute_s, side="right")
    # Within a class the sizes are taken as evenly spread.
    share = np.clip((compute_s - FLOORS_S[size]) * PER_WIDTH[size], 0.0, 1.0)
    position = situation.first_class + size
    ahead_s = _smaller(table.work_below_s, position, share)
    overtaken = situation.num_prompts - _smaller(table.prompts_below, position, share)
    waits = np.maximum(ahead_s - situation.done_s, 0.0)
    delays = compute_s * overtaken
    if num_sorted == len(is_sorted):
        return waits, delays
    return (
        np.where(is_sorted, waits, fifo_waits_s(situation)),
        np.where(is_sorted, delays, 0.0),
    )


def fifo_waits_s(situation: Situation) -> Floats:
    reported_s = np.maximum(situation.column("start_s") - situation.now_s, 0.0)
    waits: Floats = reported_s + situation.column("promised_s")
    return waits


def _smaller(below: Floats, position: NDArray[np.intp], share: Floats) -> Floats:
    """Of what is summed up by size: how much is of smaller ones; position: row and class."""
    flat = below.reshape(-1)
    smaller_classes: Floats = flat.take(position)
    upto: Floats = smaller_classes + share * (flat.take(position + 1) - smaller_classes)
    return upto


EDGES_S = np.array(SIZE_EDGES_S)
FLOORS_S = np.concatenate([[0.0], EDGES_S])
PER_WIDTH = 1.0 / np.diff(np.concatenate([FLOORS_S, [2 * EDGES_S[-1]]]))


def backlogs_s(situation: Situation) -> Floats:
    """All the work that waits at each candidate, whatever a newcomer would overtake."""
    done_s = situation.now_s - situation.column("seen_s")
    all_work_s = situation.table.work_below_s[situation.rows, -1]
    return np.where(
        situation.column("is_sorted"),
        np.maximum(all_work_s - done_s, 0.0),
        fifo_waits_s(situation),
    )


def random_numbers(count: int, rng: random.Random) -> Floats:
    return np.frombuffer(rng.randbytes(8 * count), np.uint64) / 2.0**64


def cheapest_first(prices: Prices, cost_s: Floats | None = None) -> Prices:
    """Ordered by cost; equals in random order, so that a burst does not go one way."""
    if cost_s is not None:
        prices.cost_s = cost_s
    order = np.argsort(prices.cost_s)
    in_order = prices.cost_s[order]
    if (in_order[1:] == in_order[:-1]).any():
        shuffled = np.argsort(random_numbers(len(order), prices.situation.rng))
        order = shuffled[np.argsort(prices.cost_s[shuffled])]
    prices.order = order
    return prices
