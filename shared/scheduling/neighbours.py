"""Which prefill instances have decode beside them: on their node, or in their own process."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.instance_table import InstanceTable, Rows


@dataclass(frozen=True, slots=True)
class Beside:
    """By prefill instance."""

    has_decode: NDArray[np.bool_] | bool
    """On its node; where all are alike, one answer."""
    own_decode: NDArray[np.intp] | None
    """Row of the decode instance of its own process, -1: it only prefills; None: all only do."""

    def of(self, rows: Rows) -> "Beside":
        """Of some of them."""
        has_decode, own_decode = self.has_decode, self.own_decode
        if not isinstance(has_decode, bool):
            has_decode = has_decode[rows]
            if has_decode.all() or not has_decode.any():
                has_decode = bool(has_decode.any())
        return Beside(has_decode, None if own_decode is None else own_decode[rows])


class Neighbours:
    """Worked out anew only when an instance came, went or was attached elsewhere."""

    def __init__(self, prefill: InstanceTable, decode: InstanceTable) -> None:
        self._prefill, self._decode = prefill, decode
        self._versions = (-1, -1)
        self._all = Beside(has_decode=False, own_decode=None)
        self._last: tuple[Rows, Beside] | None = None
        """Of rows that are never written to, what was found."""

    def of(self, rows: Rows) -> Beside:
        """Of rows of prefill instances."""
        versions = (self._prefill.version, self._decode.version)
        if self._versions != versions:
            self._versions = versions
            self._all, self._last = self._look(), None
        if self._last is None or self._last[0] is not rows:
            self._last = rows, self._all.of(rows)
        return self._last[1]

    def _look(self) -> Beside:
        prefill, decode = self._prefill, self._decode
        row_of_id = {view.id: row for row, view in enumerate(decode.views) if view is not None}
        own_decode = np.array(
            [-1 if view is None else row_of_id.get(view.id, -1) for view in prefill.views], np.intp
        )
        nodes, rows = decode.rows_on, np.arange(len(prefill.views))
        has_decode = prefill.by_node(nodes, [1] * len(nodes), rows) > 0
        return Beside(
            has_decode if has_decode.any() else False,
            own_decode if (own_decode >= 0).any() else None,
        )
