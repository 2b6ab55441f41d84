"""Which instances can take a request, and why the others cannot.

What only changes when an instance changes what it is (model, state) is sorted out once and kept;
the rest is looked at for each request, by whole columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.instance_table import STATES, InstanceTable, Rows, among, least
from shared.scheduling.vocabulary import PlacementRequest, Role


@dataclass(slots=True)
class Sieve:
    """Rows that are left, ascending, and the others by their first reason."""

    rows: Rows
    counts: dict[str, int]

    def drop(self, reason: str, is_hit: NDArray[np.bool_]) -> None:
        number = int(np.count_nonzero(is_hit))
        if number:
            self.counts[reason] = self.counts.get(reason, 0) + number
            self.rows = self.rows[~is_hit]

    def drop_rows(self, reason: str, rows: list[int]) -> None:
        if rows:
            self.drop(reason, among(self.rows, rows))


class Standing:
    """Of each model, who is ready; as long as nobody changes what it is."""

    def __init__(self, table: InstanceTable) -> None:
        self._table = table
        self._version = -1
        self._ready: dict[str, Sieve] = {}

    def ready(self, model: str) -> Sieve:
        """A sieve of the caller's own; its rows are the same array until somebody changes."""
        if self._version != self._table.version:
            self._version = self._table.version
            self._ready.clear()
        known = self._ready.get(model)
        if known is None:
            known = Sieve(self._table.live_rows, {})
            drop_unready(known, self._table, model)
            if self._table.models.known(model) >= 0:
                self._ready[model] = known
        return Sieve(known.rows, known.counts.copy())

    def insisted(self, model: str, row: int | None) -> Sieve:
        """The one that is insisted on, if it is ready."""
        sieve = Sieve(self._table.live_rows, {})
        sieve.drop("not_insisted", sieve.rows != (-1 if row is None else row))
        drop_unready(sieve, self._table, model)
        return sieve


def drop_unready(sieve: Sieve, table: InstanceTable, model: str) -> None:
    is_other = table.column("model", sieve.rows) != table.models.known(model)
    sieve.drop("other_model", is_other)
    for code, state in enumerate(STATES):
        if state != "ready":
            sieve.drop(state, table.column("state", sieve.rows) == code)
    sieve.drop("no_answer", table.column("is_suspect", sieve.rows))


def drop_unable(
    sieve: Sieve,
    table: InstanceTable,
    role: Role,
    request: PlacementRequest,
    now_s: float,
    lease_s: float,
) -> None:
    """Those that have been silent for longer than a lease, or have no room for the request."""
    rows, facts = sieve.rows, table.facts(sieve.rows)
    if not len(rows):
        return
    seen_s = table.column("seen_s", rows)
    if now_s - least(seen_s) > lease_s:
        sieve.drop("silent", now_s - seen_s > lease_s)
    needed = request.num_tokens + min(request.max_tokens, 1)
    if facts.least_context_tokens < needed:
        sieve.drop("context", table.column("context_tokens", sieve.rows) < needed)
    if role == "decode":
        _drop_full(sieve, table, request, facts.least_capacity_tokens)


def _drop_full(
    sieve: Sieve, table: InstanceTable, request: PlacementRequest, least_capacity: int
) -> None:
    if least_capacity < request.room_tokens:
        capacity = table.column("capacity_tokens", sieve.rows)
        sieve.drop("too_small", capacity < request.room_tokens)
    if not len(sieve.rows):
        return
    # Where even the whole answer fits everywhere, there is nothing to look at.
    free = table.column("free_tokens", sieve.rows)
    if least(free) < request.room_tokens:
        admit = table.column("admit_tokens", sieve.rows)
        sieve.drop("full", free < request.num_tokens + np.minimum(admit, request.max_tokens))
