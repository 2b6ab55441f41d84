"""The numbers of all instances of one role as columns, for decisions over a thousand of them.

Only a mirror of what the view knows, in a form that numpy can work on; decides nothing. A row
belongs to one incarnation for as long as that is in the view, then to another. Columns that only
change when an instance changes what it is are `FIXED`; what is worked out from them is kept until
one does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.fixed_facts import FixedFacts
from shared.scheduling.queue_discipline import NUM_SIZES, size_class
from shared.scheduling.vocabulary import InstanceKey, InstanceView

Rows = NDArray[np.intp]
FIXED = (
    ("is_suspect", "?"),
    ("is_sorted", "?"),  # its queue is known by size: the discipline is not FIFO
    ("state", "i1"),
    ("model", "i4"),
    ("root", "i4"),
    ("capacity_tokens", "i8"),
    ("admit_tokens", "i8"),
    ("context_tokens", "i8"),
    ("block_tokens", "i8"),
    ("grid_tokens", "i8"),
    ("block_bytes", "i8"),
)
CHANGING = (
    ("seen_s", "f8"),
    ("start_s", "f8"),  # expected start of a newcomer, in time of the view
    ("promised_s", "f8"),
    ("batch", "i8"),
    ("free_tokens", "i8"),
    ("batch_tokens", "i8"),
    ("queued_tokens", "i8"),
)
NODE = (
    ("node", "i8"),  # a number for each
    ("link_bytes", "f8"),  # what it had still to move
    ("link_at_s", "f8"),  # at this time
)
STATES = ("ready", "starting", "draining")
FIRST_SIZE = 16
MAX_FACTS = 16
FEW = 4
"""Rows that are sooner looked at one by one: of a numpy call most is the same for any number."""
MAX_COMPARED = 256
"""Pairs of rows that are sooner compared one by one."""


def among(rows: Rows, few: Sequence[int]) -> NDArray[np.bool_]:
    """Which of the rows are among those few. For a handful numpy's own search takes far longer."""
    if len(rows) * len(few) > MAX_COMPARED:
        return np.isin(rows, few)
    return np.fromiter((row in few for row in rows.tolist()), np.bool_, len(rows))


def least(values: NDArray[Any]) -> float:
    """Of a column that is not empty."""
    return float(min(values.tolist()) if len(values) <= FEW else np.minimum.reduce(values))


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
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros(FIRST_SIZE, kind) for name, kind in (*FIXED, *CHANGING, *NODE)
        }
        self.queues: NDArray[np.float64] = np.zeros((2, NUM_SIZES + 1, FIRST_SIZE))
        """Seconds of waiting work, and waiting prompts, of smaller size classes; in the end all of
        them. What is promised counts too."""
        self.views: list[InstanceView | None] = [None] * FIRST_SIZE
        self.rows_on: dict[tuple[str, str], list[int]] = {}
        """By (node, node incarnation)."""
        self._code_of: dict[tuple[str, str], int] = {}
        self._free_codes = list(range(FIRST_SIZE))
        self.num_on: Counter[str] = Counter()
        """By node, whatever its incarnation."""
        self.row_of: dict[InstanceKey, int] = {}
        self.models = Codes()
        self.roots = Codes()
        self.version = 0
        """Changes whenever a row or a fixed column does."""
        self._fixed: list[tuple[Any, ...] | None] = [None] * FIRST_SIZE
        self._facts: dict[int, tuple[Rows, FixedFacts]] = {}
        self._facts_version = -1
        self._free = list(range(FIRST_SIZE - 1, -1, -1))
        self._by_id: Rows | None = None

    def column(self, name: str, rows: Rows) -> NDArray[Any]:
        """Of these rows, in ascending order. Not a copy where they are the first ones."""
        count = len(rows)
        if count and rows[-1] == count - 1:
            return self.columns[name][:count]
        values: NDArray[Any] = self.columns[name][rows]
        return values

    def queues_below(self, size: int, rows: Rows) -> NDArray[np.float64]:
        """Work and prompts of smaller classes than `size`, by row; as `column`."""
        count = len(rows)
        if count and rows[-1] == count - 1:
            return self.queues[:, size, :count]
        values: NDArray[np.float64] = self.queues[:, size].take(rows, axis=1)
        return values

    def queues_at(self, sizes: Rows, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same where each row has a size of its own, and up to the next size."""
        width = self.queues.shape[2]
        flat = self.queues.reshape(2, -1)
        positions = sizes * width + rows
        return flat.take(positions, axis=1), flat.take(positions + width, axis=1)

    def facts(self, rows: Rows) -> FixedFacts:
        """Of an array of rows that is never written to: asked again, it is known."""
        if self._facts_version != self.version or len(self._facts) > MAX_FACTS:
            self._facts.clear()
            self._facts_version = self.version
        known = self._facts.get(id(rows))
        if known is None or known[0] is not rows:
            known = self._facts[id(rows)] = rows, FixedFacts.of(self.columns, rows)
        return known[1]

    @property
    def live_rows(self) -> Rows:
        return np.array(sorted(self.row_of.values()), np.intp)

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
        self.row_of[view.key] = row
        self._by_id = None
        return row

    def replace(self, row: int, view: InstanceView) -> bool:
        """A newer report of the same incarnation; True: it is attached to another node now."""
        old = self.view(row)
        is_moved = old.node != view.node or old.node_incarnation != view.node_incarnation
        if is_moved:
            self._leave_node(row, old)
            self._join_node(row, view)
        self.views[row] = view
        return is_moved

    def remove(self, row: int) -> None:
        view = self.view(row)
        self._leave_node(row, view)
        del self.row_of[view.key]
        self.views[row] = self._fixed[row] = None
        for column in self.columns.values():
            column[row] = 0
        self.queues[:, :, row] = 0.0
        self._free.append(row)
        self._by_id = None

    def write(self, row: int, fixed: tuple[Any, ...], changing: tuple[Any, ...]) -> None:
        """Values in the order of `FIXED` and `CHANGING`."""
        columns = self.columns
        if self._fixed[row] != fixed:
            self._fixed[row] = fixed
            self.version += 1
            for (name, _), value in zip(FIXED, fixed, strict=True):
                columns[name][row] = value
        for (name, _), value in zip(CHANGING, changing, strict=True):
            columns[name][row] = value

    def add_load(
        self,
        row: int,
        *,
        compute_s: float,
        tokens: int,
        room_tokens: int,
        compute_tokens: int,
    ) -> None:
        """One request more, on top of what was written."""
        columns = self.columns
        columns["promised_s"][row] += compute_s
        columns["batch"][row] += 1
        columns["free_tokens"][row] -= room_tokens
        columns["batch_tokens"][row] += tokens
        columns["queued_tokens"][row] += compute_tokens
        if columns["is_sorted"][row]:
            larger = size_class(compute_s) + 1
            self.queues[0, larger:, row] += compute_s
            self.queues[1, larger:, row] += 1.0

    def write_queue(self, row: int, work_s: Sequence[float], prompts: Sequence[float]) -> None:
        """Both summed up by size, 0 before the smallest."""
        self.queues[0, :, row] = work_s
        self.queues[1, :, row] = prompts

    def write_link(self, node: tuple[str, str], num_bytes: float, at_s: float) -> None:
        """What that node has still to move."""
        for row in self.rows_on.get(node, ()):
            self.columns["link_bytes"][row] = num_bytes
            self.columns["link_at_s"][row] = at_s

    def _join_node(self, row: int, view: InstanceView) -> None:
        self.version += 1
        node = (view.node, view.node_incarnation)
        if node not in self.rows_on:
            self.rows_on[node] = []
            self._code_of[node] = self._free_codes.pop()
        self.rows_on[node].append(row)
        self.columns["node"][row] = self._code_of[node]
        self.num_on[view.node] += 1

    def _leave_node(self, row: int, view: InstanceView) -> None:
        self.version += 1
        node = (view.node, view.node_incarnation)
        self.rows_on[node].remove(row)
        if not self.rows_on[node]:
            del self.rows_on[node]
            self._free_codes.append(self._code_of.pop(node))
        self.num_on[view.node] -= 1
        if not self.num_on[view.node]:
            del self.num_on[view.node]

    def in_order_of_ids(self, rows: Rows) -> Rows:
        """The same rows by id."""
        if self._by_id is None:
            live = [row for row, view in enumerate(self.views) if view is not None]
            live.sort(key=lambda row: self.view(row).key)
            self._by_id = np.array(live, np.intp)
        is_wanted = np.zeros(len(self.views), bool)
        is_wanted[rows] = True
        return self._by_id[is_wanted[self._by_id]]

    def rows_of(self, role: str, parties: Iterable[tuple[str, str, str]]) -> list[int]:
        """Of these (service, id, incarnation): instances of this role, and those of nodes."""
        rows: list[int] = []
        for service, name, incarnation in parties:
            if service == "transfer":
                rows += self.rows_on.get((name, incarnation), [])
            elif service == role and (name, incarnation) in self.row_of:
                rows.append(self.row_of[name, incarnation])
        return rows

    def by_node(
        self, nodes: Iterable[tuple[str, str]], numbers: Sequence[int], rows: Rows
    ) -> NDArray[np.int64]:
        """The number of its node for each of these rows; 0 where that is not among the nodes."""
        code_of, unknown = self._code_of, len(self.views)
        values = np.zeros(unknown + 1, np.int64)
        values[[code_of.get(node, unknown) for node in nodes]] = numbers
        found: NDArray[np.int64] = values[self.column("node", rows)]
        return found

    def _grow(self) -> None:
        size = len(self.views)
        for name, column in self.columns.items():
            self.columns[name] = np.concatenate([column, np.zeros_like(column)])
        self.queues = np.concatenate([self.queues, np.zeros_like(self.queues)], axis=2)
        self.views += [None] * size
        self._fixed += [None] * size
        self._free = list(range(2 * size - 1, size - 1, -1))
        self._free_codes += range(size, 2 * size)

    def check_integrity(self) -> None:
        live = {row for row, view in enumerate(self.views) if view is not None}
        assert not live & set(self._free), "a free row is in use"
        assert live | set(self._free) == set(range(len(self.views))), "a row is lost"
        assert {row for rows in self.rows_on.values() for row in rows} == live, "rows by node"
        assert set(self.row_of.values()) == live, "rows by instance"
        assert self._code_of.keys() == self.rows_on.keys(), "numbers of nodes"
        assert {row for row, fixed in enumerate(self._fixed) if fixed} == live, "written rows"
