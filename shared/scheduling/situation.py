"""What a policy may look at: a request, its candidates as columns, how long it waits at each."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.cost_model import CostModel
from shared.scheduling.fixed_facts import FixedFacts, Floats, Ints
from shared.scheduling.instance_table import FEW, InstanceTable, Rows
from shared.scheduling.queue_discipline import NUM_SIZES, SIZE_EDGES_S, size_class
from shared.scheduling.vocabulary import NodeMatch, PlacementRequest

EDGES_S = np.array(SIZE_EDGES_S)
FLOORS_S = np.concatenate([[0.0], EDGES_S])
PER_WIDTH = 1.0 / np.diff(np.concatenate([FLOORS_S, [2 * EDGES_S[-1]]]))


@dataclass(slots=True)
class Situation:
    """`rows` are eligible (live, not excluded, not draining), ascending, never written to."""

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
    num_wanted: int | None = None
    """Of the best candidates, how many must be in order; None: all."""
    table: InstanceTable = field(init=False)
    facts: FixedFacts = field(init=False)
    depths: list[int] = field(init=False)
    """Of the matches, in their order."""
    _done_s: Floats | None = None

    def __post_init__(self) -> None:
        self.table = self.view.tables["prefill"]
        self.facts = self.table.facts(self.rows)
        self.depths = [match.num_blocks for match in self.matches.values()]

    def column(self, name: str) -> NDArray[Any]:
        return self.table.column(name, self.rows)

    def usable_tokens(self, num_blocks: Ints | int) -> Ints | int:
        """Tokens that a match saves at each candidate: whole grid chunks, never the last chunk."""
        return self.facts.usable_tokens(num_blocks, self.request.num_tokens)

    def disk_blocks(self, local_blocks: Ints) -> Ints | int:
        """Of these blocks on the own nodes, how many must be read from disk."""
        on_disk = [match.disk_blocks for match in self.matches.values()]
        if not any(on_disk):
            return 0
        return np.minimum(self.table.by_node(self.matches, on_disk, self.rows), local_blocks)

    @property
    def done_s(self) -> Floats:
        """Work that is done since it was reported."""
        if self._done_s is None:
            self._done_s = self.now_s - self.column("seen_s")
        return self._done_s


def waits_and_delays_s(
    situation: Situation, compute_s: Floats | float
) -> tuple[Floats, Floats | float]:
    """Until a newcomer of this work starts, by each candidate's own discipline; and what those
    that it goes before lose, together."""
    is_sorted = situation.facts.is_sorted
    if is_sorted is False:
        return fifo_waits_s(situation), 0.0
    table, rows = situation.table, situation.rows
    if is_sorted is True and isinstance(compute_s, float) and len(rows) <= FEW:
        return _waits_and_delays_of_few_s(situation, compute_s)
    ahead_s, smaller_prompts = _smaller(situation, compute_s)
    waits: Floats = np.maximum(ahead_s - situation.done_s, 0.0)
    delays: Floats = compute_s * (table.queues_below(-1, rows)[1] - smaller_prompts)
    if is_sorted is True:
        return waits, delays
    return (
        np.where(is_sorted, waits, fifo_waits_s(situation)),
        np.where(is_sorted, delays, 0.0),
    )


def _waits_and_delays_of_few_s(situation: Situation, compute_s: float) -> tuple[Floats, Floats]:
    """The same, one by one."""
    size = size_class(compute_s)
    share = _share_of(size, compute_s)
    seen_s, queues = situation.table.columns["seen_s"], situation.table.queues
    waits, delays = [], []
    for row in situation.rows.tolist():
        below_s, upto_s = queues.item(0, size, row), queues.item(0, size + 1, row)
        below, upto = queues.item(1, size, row), queues.item(1, size + 1, row)
        done_s = situation.now_s - seen_s.item(row)
        waits.append(max(below_s + share * (upto_s - below_s) - done_s, 0.0))
        smaller_prompts = below + share * (upto - below)
        delays.append(compute_s * (queues.item(1, NUM_SIZES, row) - smaller_prompts))
    return np.array(waits), np.array(delays)


def fifo_waits_s(situation: Situation) -> Floats:
    reported_s = np.maximum(situation.column("start_s") - situation.now_s, 0.0)
    waits: Floats = reported_s + situation.column("promised_s")
    return waits


def backlogs_s(situation: Situation) -> Floats:
    """All the work that waits at each candidate, whatever a newcomer would overtake."""
    all_work_s = situation.table.queues_below(-1, situation.rows)[0]
    return np.where(
        situation.facts.is_sorted,
        np.maximum(all_work_s - situation.done_s, 0.0),
        fifo_waits_s(situation),
    )


def _smaller(situation: Situation, compute_s: Floats | float) -> Floats:
    """Work and prompts that are smaller than a newcomer of this work, of each candidate."""
    table, rows = situation.table, situation.rows
    # Within a class the sizes are taken as evenly spread.
    if isinstance(compute_s, float):
        size = size_class(compute_s)
        share = _share_of(size, compute_s)
        below, upto = table.queues_below(size, rows), table.queues_below(size + 1, rows)
        smaller: Floats = below + share * (upto - below)
    else:
        sizes = EDGES_S.searchsorted(compute_s, side="right")
        shares = np.minimum((compute_s - FLOORS_S[sizes]) * PER_WIDTH[sizes], 1.0)
        below, upto = table.queues_at(sizes, rows)
        smaller = below + shares * (upto - below)
    return smaller


def _share_of(size: int, compute_s: float) -> float:
    """How much of its class is smaller."""
    share: float = min((compute_s - FLOORS_S.item(size)) * PER_WIDTH.item(size), 1.0)
    return share
