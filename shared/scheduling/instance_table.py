"""The numbers of all instances of one role as columns, for decisions over a thousand of them.

Only a mirror of what the view knows, in a form that numpy can work on; decides nothing. A row
belongs to one incarnation for as long as that is in the view, then to another.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.queue_discipline import NUM_SIZES
from shared.scheduling.vocabulary import InstanceView

Rows = NDArray[np.intp]
COLUMNS = np.dtype(
    [
        ("is_live", "?"),
        ("is_suspect", "?"),
        ("is_sorted", "?"),  # its queue is known by size: the discipline is not FIFO
        ("state", "i1"),
        ("model", "i4"),
        ("root", "i4"),
        ("seen_s", "f8"),
        ("start_s", "f8"),  # expected start of a newcomer, in time of the view
        ("promised_s", "f8"),
        ("batch", "i8"),
        ("free_tokens", "i8"),
        ("batch_tokens", "i8"),
        ("queued_tokens", "i8"),
        ("capacity_tokens", "i8"),
        ("admit_tokens", "i8"),
        ("context_tokens", "i8"),
        ("block_tokens", "i8"),
        ("grid_tokens", "i8"),
        ("block_bytes", "i8"),
    ],
    align=True,  # columns are gathered a third faster
)
STATES = ("ready", "starting", "draining")


class Codes:
    """Small numbers for words that come again and again (models, roots)."""

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}

    def of(self, word: Any) -> int:
        return self._codes.setdefault(word, len(self._codes))

    def known(self, word: Any) -> int:
        return self._codes.get(word, -1)


class InstanceTable:
    def __init__(self) -> None:
        self.data: NDArray[Any] = np.zeros(16, COLUMNS)
        self.work_below_s: NDArray[np.float64] = np.zeros((16, NUM_SIZES + 1))
        """Waiting work of smaller size classes, promised work with it; in the end all of it."""
        self.prompts_below: NDArray[np.float64] = np.zeros((16, NUM_SIZES + 1))
        self.views: list[InstanceView | None] = [None] * 16
        self.rows_on: dict[tuple[str, str], list[int]] = {}
        """By (node, node incarnation)."""
        self.num_on: Counter[str] = Counter()
        """By node, whatever its incarnation."""
        self.row_of: dict[str, int] = {}
        """By incarnation."""
        self.models = Codes()
        self.roots = Codes()
        self.version = 0
        """Changes whenever another instance or node gets a row."""
        self._free = list(range(15, -1, -1))
        self._by_id: Rows | None = None

    def column(self, name: str, rows: Rows) -> NDArray[Any]:
        values: NDArray[Any] = self.data[name][rows]
        return values

    def view(self, row: int) -> InstanceView:
        view = self.views[row]
        assert view is not None, "a row without an instance"
        return view

    def add(self, view: InstanceView) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.views[row] = view
        self._join_node(row, view)
        self.row_of[view.incarnation] = row
        self._by_id = None
        return row

    def replace(self, row: int, view: InstanceView) -> None:
        """A newer report of the same incarnation; it may have been attached to another node."""
        old = self.view(row)
        if (old.node, old.node_incarnation) != (view.node, view.node_incarnation):
            self._leave_node(row, old)
            self._join_node(row, view)
        self.views[row] = view

    def remove(self, row: int) -> None:
        view = self.view(row)
        self._leave_node(row, view)
        del self.row_of[view.incarnation]
        self.views[row] = None
        self.data[row] = np.zeros((), COLUMNS)
        self.work_below_s[row] = self.prompts_below[row] = 0.0
        self._free.append(row)
        self._by_id = None

    def _join_node(self, row: int, view: InstanceView) -> None:
        self.version += 1
        self.rows_on.setdefault((view.node, view.node_incarnation), []).append(row)
        self.num_on[view.node] += 1

    def _leave_node(self, row: int, view: InstanceView) -> None:
        self.version += 1
        node = (view.node, view.node_incarnation)
        self.rows_on[node].remove(row)
        if not self.rows_on[node]:
            del self.rows_on[node]
        self.num_on[view.node] -= 1
        if not self.num_on[view.node]:
            del self.num_on[view.node]

    def in_order_of_ids(self, rows: Rows) -> Rows:
        """The same rows by id."""
        if self._by_id is None:
            live = [row for row, view in enumerate(self.views) if view is not None]
            live.sort(key=lambda row: self.view(row).key)
            self._by_id = np.array(live, np.intp)
        is_wanted = np.zeros(len(self.data), bool)
        is_wanted[rows] = True
        return self._by_id[is_wanted[self._by_id]]

    def rows_of(self, role: str, parties: Iterable[tuple[str, str, str]]) -> list[int]:
        """Of these (service, id, incarnation): instances of this role, and those of nodes."""
        rows: list[int] = []
        for service, name, incarnation in parties:
            if service == "transfer":
                rows += self.rows_on.get((name, incarnation), [])
            elif service == role and incarnation in self.row_of:
                rows.append(self.row_of[incarnation])
        return rows

    def scatter(self, found: Iterable[tuple[tuple[str, str], int]]) -> NDArray[np.int64]:
        """A number for each row from numbers by node; 0 where there is none."""
        rows: list[int] = []
        numbers: list[int] = []
        rows_on = self.rows_on
        for node, number in found:
            here = rows_on.get(node)
            if here is not None:
                rows += here
                numbers += [number] * len(here)
        values = np.zeros(len(self.data), np.int64)
        values[rows] = numbers
        return values

    def _grow(self) -> None:
        size = len(self.data)
        self.data = np.concatenate([self.data, np.zeros(size, COLUMNS)])
        nothing = np.zeros((size, NUM_SIZES + 1))
        self.work_below_s = np.concatenate([self.work_below_s, nothing])
        self.prompts_below = np.concatenate([self.prompts_below, nothing])
        self.views += [None] * size
        self._free = list(range(2 * size - 1, size - 1, -1))

    def check_integrity(self) -> None:
        live = {row for row, view in enumerate(self.views) if view is not None}
        assert not live & set(self._free), "a free row is in use"
        assert live | set(self._free) == set(range(len(self.data))), "a row is lost"
        assert {row for rows in self.rows_on.values() for row in rows} == live, "rows by node"
        assert set(self.row_of.values()) == live, "rows by incarnation"
        assert set(np.flatnonzero(self.data["is_live"])) == live, "live rows"
